import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.channel.socket.nio.NioSocketChannel;

/** Passes bytes on both ways: Proxy ADDRESS PORT BACKEND PORT. */
public final class Proxy {
    public static void main(String[] args) throws Exception {
        EventLoopGroup boss = new NioEventLoopGroup(1);
        EventLoopGroup workers = new NioEventLoopGroup();
        new ServerBootstrap()
            .group(boss, workers)
            .channel(NioServerSocketChannel.class)
            .option(ChannelOption.SO_BACKLOG, 1024)
            .childOption(ChannelOption.AUTO_READ, false)
            .childOption(ChannelOption.TCP_NODELAY, true)
            .childHandler(new ChannelInitializer<SocketChannel>() {
                @Override
                protected void initChannel(SocketChannel channel) {
                    channel.pipeline().addLast(new Front(args[2], Integer.parseInt(args[3])));
                }
            })
            .bind(args[0], Integer.parseInt(args[1]))
            .sync()
            .channel()
            .closeFuture()
            .sync();
    }

    /** Opens a connection to the backend, and passes on to it. */
    private static final class Front extends ChannelInboundHandlerAdapter {
        private final String host;
        private final int port;
        private Channel backend;

        Front(String host, int port) {
            this.host = host;
            this.port = port;
        }

        @Override
        public void channelActive(ChannelHandlerContext client) {
            Bootstrap bootstrap = new Bootstrap()
                .group(client.channel().eventLoop())
                .channel(NioSocketChannel.class)
                .option(ChannelOption.AUTO_READ, false)
                .option(ChannelOption.TCP_NODELAY, true)
                .handler(new Relay(client.channel()));
            backend = bootstrap.connect(host, port).addListener((ChannelFutureListener) opened -> {
                if (opened.isSuccess()) {
                    client.channel().read();
                } else {
                    client.close();
                }
            }).channel();
        }

        @Override
        public void channelRead(ChannelHandlerContext client, Object bytes) {
            pass(client.channel(), backend, bytes);
        }

        @Override
        public void channelInactive(ChannelHandlerContext client) {
            end(backend);
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext client, Throwable why) {
            end(client.channel());
        }
    }

    /** Passes on to the client. */
    private static final class Relay extends ChannelInboundHandlerAdapter {
        private final Channel client;

        Relay(Channel client) {
            this.client = client;
        }

        @Override
        public void channelActive(ChannelHandlerContext backend) {
            backend.read();
        }

        @Override
        public void channelRead(ChannelHandlerContext backend, Object bytes) {
            pass(backend.channel(), client, bytes);
        }

        @Override
        public void channelInactive(ChannelHandlerContext backend) {
            end(client);
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext backend, Throwable why) {
            end(backend.channel());
        }
    }

    private static void pass(Channel from, Channel to, Object bytes) {
        to.writeAndFlush(bytes).addListener((ChannelFutureListener) written -> {
            if (written.isSuccess()) {
                from.read();
            } else {
                written.channel().close();
            }
        });
    }

    private static void end(Channel channel) {
        if (channel != null && channel.isActive()) {
            channel.writeAndFlush(Unpooled.EMPTY_BUFFER).addListener(ChannelFutureListener.CLOSE);
        }
    }
}
