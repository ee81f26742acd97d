import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.ArrayList;
import java.util.List;

/**
 * Echo server and client, by a Selector or by blocking sockets:
 * Echo nio-server|server PORT, Echo nio-client|client PORT CONNECTIONS ROUNDS MAXBYTES.
 */
public final class Echo {
    static final InetAddress LOCAL = InetAddress.getLoopbackAddress();

    public static void main(String[] args) {
        try {
            int port = Integer.parseInt(args[1]);
            switch (args[0]) {
                case "nio-server" -> new NioServer(port).run();
                case "server" -> serve(port);
                default -> clients(args, port);
            }
        } catch (Exception error) {
            // Other threads may still talk: the first failure ends it.
            error.printStackTrace();
            System.exit(1);
        }
    }

    static void clients(String[] args, int port) throws Exception {
        int connections = Integer.parseInt(args[2]);
        int rounds = Integer.parseInt(args[3]);
        int most = Integer.parseInt(args[4]);
        if (args[0].equals("nio-client")) {
            new NioClient(port, connections, rounds, most).run();
        } else {
            ExecutorService threads = Executors.newCachedThreadPool();
            List<Future<?>> all = new ArrayList<>();
            for (int n = 0; n < connections; n++) {
                int seed = n;
                all.add(threads.submit(() -> { converse(port, seed, rounds, most); return null; }));
            }
            for (Future<?> one : all) {
                one.get(60, TimeUnit.SECONDS);
            }
            threads.shutdown();
        }
        System.out.println("rounds=" + connections * rounds);
    }

    static byte[] message(Random random, int most) {
        byte[] message = new byte[1 + random.nextInt(random.nextBoolean() ? most : 1000)];
        random.nextBytes(message);
        return message;
    }

    // ---- blocking sockets

    static void serve(int port) throws IOException {
        try (ServerSocket listener = new ServerSocket(port, 200, LOCAL)) {
            while (true) {
                Socket socket = listener.accept();
                Thread thread = new Thread(() -> echo(socket));
                thread.setDaemon(true);
                thread.start();
            }
        }
    }

    static void echo(Socket socket) {
        try (socket) {
            socket.getInputStream().transferTo(socket.getOutputStream());
        } catch (IOException error) {
            System.err.println(error);
        }
    }

    static void converse(int port, int seed, int rounds, int most) throws Exception {
        Random random = new Random(seed);
        try (Socket socket = new Socket(LOCAL, port)) {
            socket.setSoTimeout(30000);
            socket.setTcpNoDelay(true);
            InputStream in = socket.getInputStream();
            OutputStream out = socket.getOutputStream();
            for (int n = 0; n < rounds; n++) {
                byte[] message = message(random, most);
                Thread writer = new Thread(() -> write(out, message));
                writer.start();
                byte[] back = in.readNBytes(message.length);
                writer.join();
                check(Arrays.equals(back, message), "other bytes");
            }
            socket.shutdownOutput();
            check(in.read() == -1, "more than was sent");
        }
    }

    static void write(OutputStream out, byte[] message) {
        try {
            out.write(message);
        } catch (IOException error) {
            System.err.println(error);
        }
    }

    static void check(boolean right, String what) {
        if (!right) {
            throw new IllegalStateException(what);
        }
    }

    // ---- Selector

    static final class NioServer {
        final Selector selector = Selector.open();

        NioServer(int port) throws IOException {
            ServerSocketChannel listener = ServerSocketChannel.open();
            listener.bind(new InetSocketAddress(LOCAL, port), 200);
            listener.configureBlocking(false);
            listener.register(selector, SelectionKey.OP_ACCEPT);
        }

        void run() throws IOException {
            while (true) {
                selector.select();
                for (SelectionKey key : selector.selectedKeys()) {
                    if (key.isAcceptable()) {
                        accept((ServerSocketChannel) key.channel());
                    } else {
                        serve(key, (SocketChannel) key.channel(), (ByteBuffer) key.attachment());
                    }
                }
                selector.selectedKeys().clear();
            }
        }

        void accept(ServerSocketChannel listener) throws IOException {
            SocketChannel channel;
            while ((channel = listener.accept()) != null) {
                channel.configureBlocking(false);
                // Direct and heap buffers go different ways through the JDK.
                boolean direct = channel.hashCode() % 2 == 0;
                ByteBuffer buffer = direct ? ByteBuffer.allocateDirect(40000) : ByteBuffer.allocate(40000);
                channel.register(selector, SelectionKey.OP_READ, buffer);
            }
        }

        /** The buffer is always as if about to be filled. */
        void serve(SelectionKey key, SocketChannel channel, ByteBuffer buffer) throws IOException {
            boolean ended = false;
            if (key.isReadable() && buffer.hasRemaining()) {
                ended = channel.read(buffer) < 0;
            }
            buffer.flip();
            channel.write(buffer);
            buffer.compact();
            if (ended && buffer.position() == 0) {
                channel.close();
                return;
            }
            int interest = buffer.hasRemaining() && !ended ? SelectionKey.OP_READ : 0;
            key.interestOps(buffer.position() > 0 ? interest | SelectionKey.OP_WRITE : interest);
        }
    }

    static final class NioClient {
        final Selector selector = Selector.open();
        final int rounds;
        final int most;
        int open;

        static final class Talk {
            Random random;
            ByteBuffer out;
            ByteBuffer in;
            int rounds;
        }

        NioClient(int port, int connections, int rounds, int most) throws IOException {
            this.rounds = rounds;
            this.most = most;
            for (int n = 0; n < connections; n++) {
                SocketChannel channel = SocketChannel.open();
                channel.configureBlocking(false);
                Talk talk = new Talk();
                talk.random = new Random(n);
                channel.register(selector, SelectionKey.OP_CONNECT, talk);
                channel.connect(new InetSocketAddress(LOCAL, port));
                open++;
            }
        }

        void run() throws IOException {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            while (open > 0) {
                check(System.nanoTime() < end, "too slow");
                selector.select(1000);
                for (SelectionKey key : selector.selectedKeys()) {
                    step(key, (SocketChannel) key.channel(), (Talk) key.attachment());
                }
                selector.selectedKeys().clear();
            }
        }

        void step(SelectionKey key, SocketChannel channel, Talk talk) throws IOException {
            if (key.isConnectable()) {
                check(channel.finishConnect(), "not connected");
                next(talk);
            }
            if (talk.out.hasRemaining()) {
                channel.write(talk.out);
            }
            if (key.isReadable()) {
                int got = channel.read(talk.in);
                if (got < 0) {
                    check(talk.rounds > rounds, "ended early");
                    channel.close();
                    open--;
                    return;
                }
            }
            if (talk.rounds <= rounds && !talk.in.hasRemaining()) {
                check(Arrays.equals(talk.in.array(), talk.out.array()), "other bytes");
                if (talk.rounds == rounds) {
                    channel.shutdownOutput();
                    talk.rounds++;
                    talk.in = ByteBuffer.allocate(1);
                } else {
                    next(talk);
                }
            }
            int write = talk.out.hasRemaining() ? SelectionKey.OP_WRITE : 0;
            key.interestOps(SelectionKey.OP_READ | write);
        }

        void next(Talk talk) {
            byte[] message = message(talk.random, most);
            talk.out = ByteBuffer.wrap(message);
            talk.in = ByteBuffer.allocate(message.length);
            talk.rounds++;
        }
    }
}
