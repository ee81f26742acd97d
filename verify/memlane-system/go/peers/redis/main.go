// A client of redis-server by go-redis.
//
//	redis use PORT               values, pipelines, transactions, waiting, subscriptions; prints "calls=N hash=SHA-256"
//	redis load PORT SECONDS      values while the server may be killed and started again; prints "ok=N failed=N"
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"log"
	"math/rand"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Goroutines that call at the same time.
const callers = 8

var ctx = context.Background()

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

func same(what string, got, expected any) {
	if fmt.Sprint(got) != fmt.Sprint(expected) {
		log.Fatalf("%s: %.100v instead of %.100v", what, got, expected)
	}
}

func noise(seed int64, bytes int) []byte {
	made := make([]byte, bytes)
	rand.New(rand.NewSource(seed)).Read(made)
	return made
}

func open(port string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:         "127.0.0.1:" + port,
		MaxRetries:   -1,
		DialTimeout:  60 * time.Second,
		ReadTimeout:  30 * time.Second,
		WriteTimeout: 30 * time.Second,
		// What hands connections over to another server may close one under a call, also without memlane.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// What came back, in an order that is always the same.
type record struct {
	calls int
	hash  hash.Hash
}

func (r *record) take(value []byte) {
	r.calls++
	r.hash.Write(value)
}

func values(client *redis.Client, told *record) {
	for n, size := range []int{0, 1, 100, 5000, 70000, 1 << 20, 5000000} {
		for seed := range 20 {
			key, value := fmt.Sprint("value:", n, ":", seed), noise(int64(seed), size)
			check(client.Set(ctx, key, value, 0).Err())
			got := must(client.Get(ctx, key).Bytes())
			if !bytes.Equal(got, value) {
				log.Fatal(size, " bytes came back as others")
			}
			told.take(got)
			if size > 100000 {
				check(client.Del(ctx, key).Err())
			}
		}
	}
}

func pipelines(client *redis.Client, told *record) {
	for round := range 30 {
		pipeline := client.Pipeline()
		var answers []*redis.StringCmd
		for n := range 200 {
			key := fmt.Sprint("pipe:", n)
			pipeline.Set(ctx, key, noise(int64(round*n), n*7), 0)
			answers = append(answers, pipeline.Get(ctx, key))
		}
		must(pipeline.Exec(ctx))
		for n, answer := range answers {
			got := must(answer.Bytes())
			if !bytes.Equal(got, noise(int64(round*n), n*7)) {
				log.Fatal("other bytes in a pipeline")
			}
			told.take(got)
		}
	}
}

// Goroutines add to one number, and repeat what another one came before.
func transactions(client *redis.Client, told *record) {
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range 25 {
				for {
					err := client.Watch(ctx, add, "sum")
					if err == nil {
						break
					}
					if !errors.Is(err, redis.TxFailedErr) {
						log.Fatal(err)
					}
				}
			}
		})
	}
	all.Wait()
	sum := must(client.Get(ctx, "sum").Result())
	same("sum", sum, callers*25)
	told.take([]byte(sum))
}

func add(tx *redis.Tx) error {
	sum, err := tx.Get(ctx, "sum").Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "sum", sum+1, 0)
		return nil
	})
	return err
}

// One end waits for what the other one gives.
func waiting(client *redis.Client, told *record) {
	go func() {
		for n := range 200 {
			if n%20 == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			check(client.RPush(ctx, "queue", noise(int64(n), n*100)).Err())
		}
	}()
	for n := range 200 {
		got := must(client.BLPop(ctx, 20*time.Second, "queue").Result())
		if !bytes.Equal([]byte(got[1]), noise(int64(n), n*100)) {
			log.Fatal("other bytes from a queue")
		}
		told.take([]byte(got[1]))
	}
	if _, err := client.BLPop(ctx, time.Second, "queue").Result(); !errors.Is(err, redis.Nil) {
		log.Fatal("not the end of the wait: ", err)
	}
}

func subscriptions(client *redis.Client, told *record) {
	subscriber := client.Subscribe(ctx, "news")
	must(subscriber.Receive(ctx))
	var publisher sync.WaitGroup
	publisher.Go(func() {
		for n := range 300 {
			check(client.Publish(ctx, "news", noise(int64(n), n*50)).Err())
		}
	})
	for n := range 300 {
		got := must(subscriber.ReceiveMessage(ctx)).Payload
		if !bytes.Equal([]byte(got), noise(int64(n), n*50)) {
			log.Fatal("other news")
		}
		told.take([]byte(got))
	}
	// The last news may come before the answer to who has published them, and the client is closed next.
	publisher.Wait()
	check(subscriber.Close())
}

func use(port string) {
	client := open(port)
	told := &record{hash: sha256.New()}
	for _, part := range []func(*redis.Client, *record){values, pipelines, transactions, waiting, subscriptions} {
		part(client, told)
	}
	check(client.Close())
	fmt.Printf("calls=%d hash=%x\n", told.calls, told.hash.Sum(nil))
}

func load(port string, seconds float64) {
	client := open(port)
	var ok, failed atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for caller := range callers {
		all.Go(func() {
			key := fmt.Sprint("load:", caller)
			// A server that is killed forgets everything.
			for n := 0; time.Now().Before(end); n++ {
				value := noise(int64(caller*1000+n), n*7919%100000)
				if client.Set(ctx, key, value, 0).Err() != nil {
					failed.Add(1)
					time.Sleep(time.Millisecond)
					continue
				}
				got, err := client.Get(ctx, key).Bytes()
				switch {
				case err != nil:
					failed.Add(1)
				case !bytes.Equal(got, value):
					log.Fatal(len(value), " bytes came back as others")
				default:
					ok.Add(1)
				}
			}
		})
	}
	all.Wait()
	fmt.Printf("ok=%d failed=%d\n", ok.Load(), failed.Load())
}

func main() {
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "use":
		use(args[1])
	case len(args) == 3 && args[0] == "load":
		load(args[1], must(strconv.ParseFloat(args[2], 64)))
	default:
		fmt.Fprintln(os.Stderr, "redis use|load PORT ...")
		os.Exit(2)
	}
}
