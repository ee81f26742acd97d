// Both ends of the rows in Go.
//
//	ends echo ADDRESS            sends back what it gets, for ever
//	ends ask ADDRESS SECONDS     100 bytes there and back on one connection; what the embedded client prints
//	ends http ADDRESS            serves a page
//	ends proxy ADDRESS BACKEND   passes requests on
//	ends get URL                 asks once
//	ends leave                   ends at once
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// Bytes of a message.
	message = 100
	// Bytes of the page, as nginx's has.
	page = 612
	// The part of the time that comes before what counts.
	warmUp = 0.2
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func echo(address string) {
	listener := must(net.Listen("tcp", address))
	for {
		conn := must(listener.Accept())
		go func() {
			defer conn.Close()
			buffer := make([]byte, 64*1024)
			for {
				n, err := conn.Read(buffer)
				if err != nil {
					return
				}
				if _, err := conn.Write(buffer[:n]); err != nil {
					return
				}
			}
		}()
	}
}

func ask(address string, seconds float64) {
	conn := must(net.Dial("tcp", address))
	there, back := make([]byte, message), make([]byte, message)
	exchange := func() time.Duration {
		began := time.Now()
		must(conn.Write(there))
		must(io.ReadFull(conn, back))
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
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"exchanges": len(took),
		"all":       all + len(took),
		"seconds":   measured,
		"p50_ns":    took[len(took)/2].Nanoseconds(),
		"p99_ns":    took[len(took)*99/100].Nanoseconds(),
	})
}

func serve(address string) {
	text := strings.Repeat("memlane ", page/8+1)[:page]
	handler := func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) }
	log.Fatal(http.ListenAndServe(address, http.HandlerFunc(handler)))
}

func proxy(address, backend string) {
	target := must(url.Parse("http://" + backend))
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = 1024
	log.Fatal(http.ListenAndServe(address, httputil.NewSingleHostReverseProxy(target)))
}

func get(from string) {
	answer := must(http.Get(from))
	defer answer.Body.Close()
	must(io.Copy(io.Discard, answer.Body))
	if answer.StatusCode != http.StatusOK {
		log.Fatal(answer.Status)
	}
}

func main() {
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "echo":
		echo(args[1])
	case len(args) == 3 && args[0] == "ask":
		ask(args[1], must(strconv.ParseFloat(args[2], 64)))
	case len(args) == 2 && args[0] == "http":
		serve(args[1])
	case len(args) == 3 && args[0] == "proxy":
		proxy(args[1], args[2])
	case len(args) == 2 && args[0] == "get":
		get(args[1])
	case len(args) == 1 && args[0] == "leave":
	default:
		fmt.Fprintln(os.Stderr, "ends echo|ask|http|proxy|get ADDRESS ...")
		os.Exit(2)
	}
}
