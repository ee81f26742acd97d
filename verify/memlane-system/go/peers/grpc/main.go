// A gRPC service without generated code, and its clients. It speaks to grpc_hash.py, too.
//
//	grpc serve ADDRESS           answers, for ever
//	grpc call ADDRESS            messages of many sizes there and back; prints "calls=N hash=SHA-256", of all that came back
//	grpc ends ADDRESS            calls that end by a deadline, or because the client has had enough; prints "done"
//	grpc load ADDRESS SECONDS    calls while the server may be killed and started again; prints "ok=N failed=N"
//	grpc ask ADDRESS SECONDS     100 bytes there and back on one connection; prints what memlane-bench reads
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// Bytes of the largest message.
	largest = 4 << 20
	// Goroutines that call at the same time.
	callers = 8
	// Bytes of a message of ask.
	message = 100
	// The part of the time of ask that comes before what counts.
	warmUp = 0.2
	limit  = 60 * time.Second
)

// Bytes of the messages, which are sent four times.
var sizes = []int{0, 1, 100, 5000, 70000, 1 << 20, 3000000, largest}

// Messages are bytes as they are.
type raw struct{}

func (raw) Name() string { return "raw" }

func (raw) Marshal(value any) ([]byte, error) { return *value.(*[]byte), nil }

func (raw) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = bytes.Clone(data)
	return nil
}

// What the server does with one message.
type unary func(context.Context, []byte) ([]byte, error)

// What the server does with a stream.
type stream func(grpc.ServerStream) error

func reversed(message []byte) []byte {
	back := bytes.Clone(message)
	slices.Reverse(back)
	return back
}

func reverse(_ context.Context, message []byte) ([]byte, error) { return reversed(message), nil }

// Sends each message back as it was, and then reversed.
func repeat(stream grpc.ServerStream) error {
	for {
		var message []byte
		if err := stream.RecvMsg(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		back := reversed(message)
		for _, answer := range []*[]byte{&message, &back} {
			if err := stream.SendMsg(answer); err != nil {
				return err
			}
		}
	}
}

// Calls that last until their client gives them up.
var underWay atomic.Int64

// Answers only when the client has given up.
func sleep(ctx context.Context, _ []byte) ([]byte, error) {
	underWay.Add(1)
	defer underWay.Add(-1)
	<-ctx.Done()
	return nil, ctx.Err()
}

// Sends until the client has had enough.
func pour(stream grpc.ServerStream) error {
	underWay.Add(1)
	defer underWay.Add(-1)
	var message []byte
	if err := stream.RecvMsg(&message); err != nil {
		return err
	}
	for {
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
	}
}

func count(context.Context, []byte) ([]byte, error) {
	return []byte(strconv.FormatInt(underWay.Load(), 10)), nil
}

func unaryMethod(name string, does unary) grpc.MethodDesc {
	handler := func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var message []byte
		if err := decode(&message); err != nil {
			return nil, err
		}
		answer, err := does(ctx, message)
		return &answer, err
	}
	return grpc.MethodDesc{MethodName: name, Handler: handler}
}

func streamMethod(name string, does stream) grpc.StreamDesc {
	handler := func(_ any, stream grpc.ServerStream) error { return does(stream) }
	return grpc.StreamDesc{StreamName: name, Handler: handler, ServerStreams: true, ClientStreams: true}
}

func serve(address string) {
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.MaxRecvMsgSize(largest))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "memlane.Hash",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			unaryMethod("Reverse", reverse),
			unaryMethod("Sleep", sleep),
			unaryMethod("Count", count),
		},
		Streams: []grpc.StreamDesc{streamMethod("Repeat", repeat), streamMethod("Pour", pour)},
	}, nil)
	log.Fatal(server.Serve(must(net.Listen("tcp", address))))
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A client of one connection.
type client struct{ *grpc.ClientConn }

func dial(address string) client {
	defaults := grpc.WithDefaultCallOptions(
		grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(largest), grpc.WaitForReady(true))
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	// A server that is started again is looked for every 50 ms.
	again := grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, MaxDelay: 50 * time.Millisecond},
		MinConnectTimeout: limit,
	})
	return client{must(grpc.NewClient("passthrough:///"+address, plain, defaults, again, grpc.WithNoProxy()))}
}

func (c client) call(ctx context.Context, method string, message []byte) ([]byte, error) {
	var answer []byte
	err := c.Invoke(ctx, "/memlane.Hash/"+method, &message, &answer)
	return answer, err
}

func (c client) open(ctx context.Context, method string) grpc.ClientStream {
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	return must(c.NewStream(ctx, both, "/memlane.Hash/"+method))
}

// Calls, and expects the message back, reversed.
func (c client) reverses(message []byte) []byte {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	answer := must(c.call(ctx, "Reverse", message))
	if !bytes.Equal(answer, reversed(message)) {
		log.Fatal(len(message), " bytes came back as others")
	}
	return answer
}

// Sends all messages on a stream, and expects each of them twice.
func (c client) repeats(messages [][]byte, take func([]byte)) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	both := c.open(ctx, "Repeat")
	go func() {
		for _, message := range messages {
			check(both.SendMsg(&message))
		}
		check(both.CloseSend())
	}()
	for _, message := range messages {
		for _, expected := range [][]byte{message, reversed(message)} {
			var answer []byte
			check(both.RecvMsg(&answer))
			if !bytes.Equal(answer, expected) {
				log.Fatal("the stream brought other bytes")
			}
			take(answer)
		}
	}
	var more []byte
	if err := both.RecvMsg(&more); !errors.Is(err, io.EOF) {
		log.Fatal("not the end of the stream: ", err)
	}
}

func noise(seed int64, bytes int) []byte {
	made := make([]byte, bytes)
	rand.New(rand.NewSource(seed)).Read(made)
	return made
}

func call(address string) {
	client := dial(address)
	var messages [][]byte
	for seed := range 4 {
		for _, size := range sizes {
			messages = append(messages, noise(int64(seed), size))
		}
	}
	calls, hash := 0, sha256.New()
	take := func(answer []byte) {
		hash.Write(answer)
		calls++
	}
	for _, message := range messages {
		take(client.reverses(message))
	}
	client.repeats(messages, take)
	// On the same connection, in any order.
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for n := range 200 {
				client.reverses(noise(int64(caller), n*n))
			}
			client.repeats(messages[:6], func([]byte) {})
		})
	}
	all.Wait()
	check(client.Close())
	fmt.Printf("calls=%d hash=%x\n", calls, hash.Sum(nil))
}

func mustBe(code codes.Code, err error) {
	if status.Code(err) != code {
		log.Fatal("not ", code, ": ", err)
	}
}

func ends(address string) {
	const rounds = 40
	client := dial(address)
	client.reverses(noise(1, 1000))
	for n := range rounds {
		wait := time.Duration(1+n%5) * 3 * time.Millisecond
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		_, err := client.call(ctx, "Sleep", nil)
		mustBe(codes.DeadlineExceeded, err)
		if took := time.Since(began); took < wait || took > wait+3*time.Second {
			log.Fatal("waited ", took, " instead of ", wait)
		}
		cancel()
		client.reverses(noise(int64(n), 3000*n))
	}
	for n := range rounds {
		ctx, cancel := context.WithCancel(context.Background())
		poured := client.open(ctx, "Pour")
		expected := noise(int64(n), 1+5000*n)
		check(poured.SendMsg(&expected))
		var message []byte
		for range n {
			check(poured.RecvMsg(&message))
			if !bytes.Equal(message, expected) {
				log.Fatal("the stream brought other bytes")
			}
		}
		cancel()
		for err := error(nil); err == nil; {
			if err = poured.RecvMsg(&message); err != nil {
				mustBe(codes.Canceled, err)
			}
		}
		client.reverses(noise(int64(n), 3000*n))
	}
	// The server learns of each of them.
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		told := string(must(client.call(context.Background(), "Count", nil)))
		if told == "0" {
			break
		}
		if time.Since(began) > 10*time.Second {
			log.Fatal(told, " calls that were given up are under way")
		}
	}
	fmt.Println("done")
}

func load(address string, seconds float64) {
	client := dial(address)
	var ok, failed atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for caller := range callers {
		all.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				message := noise(int64(caller*1000+n), n*7919%100000)
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				answer, err := client.call(ctx, "Reverse", message)
				cancel()
				if err != nil {
					// It was under way when the server died.
					mustBe(codes.Unavailable, err)
					failed.Add(1)
				} else if !bytes.Equal(answer, reversed(message)) {
					log.Fatal(len(message), " bytes came back as others")
				} else {
					ok.Add(1)
				}
			}
		})
	}
	all.Wait()
	fmt.Printf("ok=%d failed=%d\n", ok.Load(), failed.Load())
}

func ask(address string, seconds float64) {
	client := dial(address)
	there := noise(1, message)
	exchange := func() time.Duration {
		began := time.Now()
		must(client.call(context.Background(), "Reverse", there))
		return time.Since(began)
	}
	all := 0
	for began := time.Now(); time.Since(began).Seconds() < warmUp*seconds; all++ {
		exchange()
	}
	var took []time.Duration
	began := time.Now()
	for time.Since(began).Seconds() < seconds {
		took = append(took, exchange())
	}
	measured := time.Since(began).Seconds()
	slices.Sort(took)
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"exchanges": len(took),
		"all":       all + len(took),
		"seconds":   measured,
		"p50_ns":    took[len(took)/2].Nanoseconds(),
		"p99_ns":    took[len(took)*99/100].Nanoseconds(),
	}))
}

func seconds(text string) float64 { return must(strconv.ParseFloat(text, 64)) }

func main() {
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "serve":
		serve(args[1])
	case len(args) == 2 && args[0] == "call":
		call(args[1])
	case len(args) == 2 && args[0] == "ends":
		ends(args[1])
	case len(args) == 3 && args[0] == "load":
		load(args[1], seconds(args[2]))
	case len(args) == 3 && args[0] == "ask":
		ask(args[1], seconds(args[2]))
	default:
		fmt.Fprintln(os.Stderr, "grpc serve|call|ends|load|ask ADDRESS ...")
		os.Exit(2)
	}
}
