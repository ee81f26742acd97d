// Echo server and client: echo server PORT, echo client PORT CONNECTIONS ROUNDS MAXBYTES.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

func number(n int) int {
	value, err := strconv.Atoi(os.Args[n])
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func serve(address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			defer conn.Close()
			// A plain buffer: io.Copy between two sockets would splice.
			io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{conn}, make([]byte, 50000))
		}()
	}
}

func converse(address string, seed int64, rounds, most int) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(60 * time.Second))
	random := rand.New(rand.NewSource(seed))
	for n := 0; n < rounds; n++ {
		message := make([]byte, 1+random.Intn(most))
		random.Read(message)
		go conn.Write(message)
		back := make([]byte, len(message))
		if _, err := io.ReadFull(conn, back); err != nil {
			log.Fatal(err)
		}
		if !bytes.Equal(back, message) {
			log.Fatal("other bytes")
		}
	}
	conn.(*net.TCPConn).CloseWrite()
	if rest, err := io.ReadAll(conn); err != nil || len(rest) != 0 {
		log.Fatal("not ended: ", len(rest), err)
	}
}

func main() {
	address := fmt.Sprintf("127.0.0.1:%d", number(2))
	if os.Args[1] == "server" {
		serve(address)
	}
	var group sync.WaitGroup
	for n := 0; n < number(3); n++ {
		group.Add(1)
		go func(seed int64) {
			defer group.Done()
			converse(address, seed, number(4), number(5))
		}(int64(n))
	}
	group.Wait()
	fmt.Printf("rounds=%d\n", number(3)*number(4))
}
