// What Go programs do with connections, each part against an echo server: many PART PORT [MORE].
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Parts of other files.
var extra = map[string]func(port string){}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func dial(port string) *net.TCPConn {
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	must(err)
	must(conn.SetDeadline(time.Now().Add(60 * time.Second)))
	return conn.(*net.TCPConn)
}

// Sends messages of random length and expects each of them back.
func converse(conn net.Conn, random *rand.Rand, rounds, most int) {
	for n := 0; n < rounds; n++ {
		message := make([]byte, 1+random.Intn(most))
		random.Read(message)
		sent := make(chan error, 1)
		go func() {
			_, err := conn.Write(message)
			sent <- err
		}()
		back := make([]byte, len(message))
		_, err := io.ReadFull(conn, back)
		must(err)
		must(<-sent)
		if !bytes.Equal(back, message) {
			log.Fatal("other bytes")
		}
	}
}

// The other side must get the end of the stream, and answer with its own.
func end(conn *net.TCPConn) {
	must(conn.CloseWrite())
	rest, err := io.ReadAll(conn)
	must(err)
	if len(rest) != 0 {
		log.Fatal("more bytes than were sent: ", len(rest))
	}
	must(conn.Close())
}

func random() *rand.Rand { return rand.New(rand.NewSource(7)) }

// Reads end when they should, and the connection goes on afterwards.
func deadlines(port string) {
	conn := dial(port)
	r := random()
	one := make([]byte, 1)
	for n := 0; n < 40; n++ {
		converse(conn, r, 20, 500)
		wait := time.Duration(n%4) * 5 * time.Millisecond
		began := time.Now()
		must(conn.SetReadDeadline(began.Add(wait)))
		_, err := conn.Read(one)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			log.Fatal("not the end of the wait: ", err)
		}
		if took := time.Since(began); took < wait || took > wait+3*time.Second {
			log.Fatal("waited ", took, " instead of ", wait)
		}
		must(conn.SetReadDeadline(time.Now().Add(30 * time.Second)))
	}
	// A deadline that is set while a goroutine waits wakes it.
	go func() {
		time.Sleep(20 * time.Millisecond)
		conn.SetReadDeadline(time.Now())
	}()
	if _, err := conn.Read(one); !errors.Is(err, os.ErrDeadlineExceeded) {
		log.Fatal("not woken by a deadline: ", err)
	}
	must(conn.SetReadDeadline(time.Now().Add(30 * time.Second)))
	// So does a close.
	go func() {
		time.Sleep(20 * time.Millisecond)
		conn.Close()
	}()
	if _, err := conn.Read(one); !errors.Is(err, net.ErrClosed) {
		log.Fatal("not woken by a close: ", err)
	}
}

// A connection as a file, as a connection of that file, and in a child.
func files(port string) {
	conn := dial(port)
	r := random()
	converse(conn, r, 100, 3000)
	file, err := conn.File()
	must(err)
	second, err := net.FileConn(file)
	must(err)
	converse(second, r, 100, 3000)
	converse(conn, r, 100, 3000)
	must(file.Close())
	must(second.Close())
	converse(conn, r, 100, 3000)
	end(conn)
}

// A child that gets the connection uses it; then the parent goes on.
func children(port string) {
	self, err := os.Executable()
	must(err)
	conn := dial(port)
	r := random()
	for n := 0; n < 3; n++ {
		converse(conn, r, 100, 3000)
		// Children that have nothing to do with it, at the same time as the connection is used.
		var others sync.WaitGroup
		for m := 0; m < 4; m++ {
			others.Add(1)
			go func() {
				defer others.Done()
				out, err := exec.Command("/bin/sh", "-c", "echo fine; exit 0").Output()
				must(err)
				if string(out) != "fine\n" {
					log.Fatal("a child said: ", string(out))
				}
			}()
		}
		converse(conn, r, 200, 300)
		others.Wait()
		// A child that cannot be started.
		if exec.Command("/no/such/program").Run() == nil {
			log.Fatal("a program that does not exist has run")
		}
		converse(conn, r, 20, 300)
	}
	file, err := conn.File()
	must(err)
	child := exec.Command(self, "inherited", port)
	child.ExtraFiles = []*os.File{file}
	child.Stderr = os.Stderr
	must(child.Run())
	must(file.Close())
	converse(conn, r, 50, 3000)
	end(conn)
}

func inherited() {
	conn, err := net.FileConn(os.NewFile(3, "inherited"))
	must(err)
	must(conn.SetDeadline(time.Now().Add(30 * time.Second)))
	converse(conn, random(), 50, 3000)
}

// The program becomes itself, by exec, with a connection in hand.
func again(port string) {
	conn := dial(port)
	converse(conn, random(), 100, 3000)
	execute("after", port, conn)
}

// Executes this program in this process, in another role, with a copy of the connection.
func execute(role, port string, conn *net.TCPConn) {
	file, err := conn.File()
	must(err)
	raw, err := syscall.Dup(int(file.Fd()))
	must(err)
	self, err := os.Executable()
	must(err)
	must(syscall.Exec(self, []string{self, role, port, strconv.Itoa(raw)}, os.Environ()))
}

func after(number string) {
	fd, err := strconv.Atoi(number)
	must(err)
	conn, err := net.FileConn(os.NewFile(uintptr(fd), "after"))
	must(err)
	converse(conn, random(), 50, 3000)
	fresh := dial(os.Args[2])
	converse(fresh, random(), 300, 3000)
	end(fresh)
}

// What has come but is not read when the program executes itself: the program after it reads on.
func unread(port string) {
	conn := dial(port)
	converse(conn, random(), 100, 3000)
	_, err := conn.Write(pattern())
	must(err)
	time.Sleep(50 * time.Millisecond)
	execute("left", port, conn)
}

func readOn(number string) {
	fd, err := strconv.Atoi(number)
	must(err)
	conn, err := net.FileConn(os.NewFile(uintptr(fd), "left"))
	must(err)
	got := make([]byte, len(pattern()))
	_, err = io.ReadFull(conn, got)
	must(err)
	if !bytes.Equal(got, pattern()) {
		panic("other bytes than were sent")
	}
	converse(conn, random(), 50, 3000)
	fresh := dial(os.Args[2])
	converse(fresh, random(), 300, 3000)
	end(fresh)
}

func pattern() []byte {
	made := make([]byte, 3000)
	for i := range made {
		made[i] = byte(i * i / 7)
	}
	return made
}

// Signals, profiling, preemption and the collector, while connections are busy.
func signals(port string) {
	profile, err := os.CreateTemp("", "profile")
	must(err)
	must(os.Remove(profile.Name()))
	must(pprof.StartCPUProfile(profile))
	told := make(chan os.Signal, 100)
	signal.Notify(told, syscall.SIGUSR1, syscall.SIGCHLD)
	var stop atomic.Bool
	var heard, collected atomic.Int64
	go func() {
		for range told {
			heard.Add(1)
		}
	}()
	go func() {
		for !stop.Load() {
			runtime.GC()
			collected.Add(1)
		}
	}()
	go func() {
		for !stop.Load() {
			must(syscall.Kill(os.Getpid(), syscall.SIGUSR1))
			time.Sleep(time.Millisecond)
		}
	}()
	go func() { // to be preempted
		for n := 0; !stop.Load(); n++ {
			if n < 0 {
				log.Fatal("overflow")
			}
		}
	}()
	var all sync.WaitGroup
	for n := 0; n < 8; n++ {
		all.Add(1)
		go func(n int) {
			defer all.Done()
			conn := dial(port)
			deep(200, func() { converse(conn, rand.New(rand.NewSource(int64(n))), 300, 3000) })
			end(conn)
		}(n)
	}
	all.Wait()
	stop.Store(true)
	pprof.StopCPUProfile()
	if heard.Load() == 0 || collected.Load() == 0 {
		log.Fatal("signals: ", heard.Load(), ", collections: ", collected.Load())
	}
	size, err := profile.Seek(0, io.SeekEnd)
	must(err)
	if size == 0 {
		log.Fatal("no profile")
	}
}

// Calls f from a deep stack, which has grown by being moved.
func deep(n int, f func()) {
	var filler [256]byte
	if n == 0 {
		f()
	} else {
		deep(n-1, f)
	}
	runtime.KeepAlive(&filler)
}

// Threads that end: each is locked to a goroutine that leaves it locked.
func threads(port string) {
	for n := 0; n < 30; n++ {
		done := make(chan bool)
		go func() {
			runtime.LockOSThread()
			conn := dial(port)
			converse(conn, random(), 30, 2000)
			end(conn)
			done <- true
		}()
		<-done
	}
	// What a thread had must be gone with it: each has more than 64 pages of address space for its calls.
	if maps := mapsOf(4096 + 4*128*1024 + 4096); maps > 40 {
		log.Fatal("stacks of threads that have ended: ", maps)
	}
}

// Counts the mappings that end where one of this size would, by their size.
func mapsOf(size uint64) int {
	maps, err := os.ReadFile("/proc/self/maps")
	must(err)
	count := 0
	for _, line := range strings.Split(string(maps), "\n") {
		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err == nil && to-from == size-4096 {
			count++
		}
	}
	return count
}

// Copies between connections, both ways, and ends each way on its own.
func relay(port, target string) {
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	must(err)
	for {
		client, err := listener.Accept()
		must(err)
		go func() {
			server := dial(target)
			must(server.SetDeadline(time.Time{}))
			pass := func(to, from *net.TCPConn, done chan bool) {
				io.Copy(to, from)
				to.CloseWrite()
				done <- true
			}
			done := make(chan bool, 2)
			go pass(server, client.(*net.TCPConn), done)
			pass(client.(*net.TCPConn), server, done)
			<-done
			<-done
			client.Close()
			server.Close()
		}()
	}
}

const warm, left = 100_000, 700_000

// Sends back the first bytes of a connection, and tells what comes after them until its end.
func sink(port string) {
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	must(err)
	for n := 0; ; n++ {
		conn, err := listener.Accept()
		must(err)
		_, err = io.CopyN(struct{ io.Writer }{conn}, conn, warm)
		must(err)
		time.Sleep(time.Duration(n%3) * 20 * time.Millisecond)
		rest, err := io.Copy(io.Discard, conn)
		fmt.Println(rest, err)
		conn.Close()
	}
}

// Leaves without closing anything.
func leave(port string) {
	conn := dial(port)
	message := make([]byte, 1000)
	for n := 0; n < warm/len(message); n++ {
		_, err := conn.Write(message)
		must(err)
		_, err = io.ReadFull(conn, message)
		must(err)
	}
	_, err := conn.Write(make([]byte, left))
	must(err)
	fmt.Println("done")
	os.Exit(0)
}

func plain(port string) {
	var all sync.WaitGroup
	for n := 0; n < 4; n++ {
		all.Add(1)
		go func(n int) {
			defer all.Done()
			conn := dial(port)
			converse(conn, rand.New(rand.NewSource(int64(n))), 200, 100_000)
			end(conn)
		}(n)
	}
	all.Wait()
}

// Serves files of any length: the body is made from the name, by the buffer, by a file (sendfile) or in pieces.
func web(port string) {
	file, err := os.CreateTemp("", "body")
	must(err)
	must(os.Remove(file.Name()))
	big := body(1 << 20)
	_, err = file.Write(big)
	must(err)
	go func() {
		for {
			runtime.GC()
		}
	}()
	http.HandleFunc("/sum", func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		_, err := io.Copy(sum, r.Body)
		if err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		fmt.Fprintf(w, "%x", sum.Sum(nil))
	})
	http.HandleFunc("/body", func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.FormValue("size"))
		w.Write(body(size))
	})
	http.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "body", time.Time{}, io.NewSectionReader(file, 0, 1<<20))
	})
	http.HandleFunc("/sendfile", func(w http.ResponseWriter, r *http.Request) {
		path := fmt.Sprintf("/proc/self/fd/%d", file.Fd())
		http.ServeFile(w, r, path)
	})
	must(http.ListenAndServe("127.0.0.1:"+port, nil))
}

func body(size int) []byte {
	bytes := make([]byte, size)
	rand.New(rand.NewSource(int64(size))).Read(bytes)
	return bytes
}

func ask(port string) {
	var all sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}, Timeout: 60 * time.Second}
	var bytesSeen atomic.Int64
	for n := 0; n < 8; n++ {
		all.Add(1)
		go func(n int) {
			defer all.Done()
			for round := 0; round < 25; round++ {
				size := (n*7919 + round*104729) % 150_000
				get := func(path string, want []byte) {
					answer, err := client.Get("http://127.0.0.1:" + port + path)
					must(err)
					got, err := io.ReadAll(answer.Body)
					must(err)
					must(answer.Body.Close())
					if answer.StatusCode != 200 || !bytes.Equal(got, want) {
						log.Fatal("other bytes: ", path, " ", answer.Status, " ", len(got))
					}
					bytesSeen.Add(int64(len(got)))
				}
				get(fmt.Sprintf("/body?size=%d", size), body(size))
				sent := body(size)
				answer, err := client.Post("http://127.0.0.1:"+port+"/sum", "application/octet-stream", bytes.NewReader(sent))
				must(err)
				got, err := io.ReadAll(answer.Body)
				must(err)
				must(answer.Body.Close())
				if want := fmt.Sprintf("%x", sha256.Sum256(sent)); string(got) != want {
					log.Fatal("other sum: ", string(got))
				}
				if round%8 == 0 {
					get("/file", body(1<<20))
					get("/sendfile", body(1<<20))
				}
			}
		}(n)
	}
	all.Wait()
	if bytesSeen.Load() == 0 {
		log.Fatal("nothing was seen")
	}
}

// Gets a file many times and prints the hash of each.
func fetch(url string, times int) {
	for n := 0; n < times; n++ {
		answer, err := http.Get(url)
		must(err)
		sum := sha256.New()
		_, err = io.Copy(sum, answer.Body)
		must(err)
		must(answer.Body.Close())
		fmt.Printf("%x\n", sum.Sum(nil))
	}
}

// Stores values with redis and gets them back.
func redis(port string) {
	conn := dial(port)
	from := bufio.NewReader(conn)
	expect := func(want []byte) {
		got := make([]byte, len(want))
		_, err := io.ReadFull(from, got)
		must(err)
		if !bytes.Equal(got, want) {
			log.Fatalf("%q instead of %q", got[:min(len(got), 60)], want[:min(len(want), 60)])
		}
	}
	r := random()
	for n := 0; n < 500; n++ {
		value := make([]byte, r.Intn(20_000))
		r.Read(value)
		key := fmt.Sprintf("key%d", n%50)
		// Several buffers at once: writev.
		set := net.Buffers{
			[]byte(fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n", len(key), key, len(value))),
			value,
			[]byte("\r\n"),
		}
		_, err := set.WriteTo(conn)
		must(err)
		expect([]byte("+OK\r\n"))
		_, err = fmt.Fprintf(conn, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key)
		must(err)
		expect([]byte(fmt.Sprintf("$%d\r\n", len(value))))
		expect(value)
		expect([]byte("\r\n"))
	}
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

func main() {
	part, port := os.Args[1], os.Args[2]
	switch part {
	case "plain":
		plain(port)
	case "deadlines":
		deadlines(port)
	case "files":
		files(port)
	case "children":
		children(port)
	case "inherited":
		inherited()
		return
	case "again":
		again(port)
	case "after":
		after(os.Args[3])
	case "unread":
		unread(port)
	case "left":
		readOn(os.Args[3])
	case "signals":
		signals(port)
	case "threads":
		threads(port)
	case "relay":
		relay(port, os.Args[3])
	case "web":
		web(port)
	case "ask":
		ask(port)
	case "sink":
		sink(port)
	case "leave":
		leave(port)
	case "redis":
		redis(port)
	case "fetch":
		times, err := strconv.Atoi(os.Args[3])
		must(err)
		fetch(port, times)
		return
	default:
		extra[part](port)
	}
	fmt.Println("done")
}
