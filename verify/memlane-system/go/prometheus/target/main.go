// What Prometheus asks: target ADDRESS SERIES. Each series says its number, and one how often it was asked.
package main

import (
	"log"
	"net/http"
	"os"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func main() {
	series, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	numbers := prometheus.NewGaugeVec(
		prometheus.GaugeOpts{Name: "target_number", Help: "The number of the series."}, []string{"series"})
	asked := prometheus.NewCounter(
		prometheus.CounterOpts{Name: "target_asked_total", Help: "How often this was asked for."})
	registry.MustRegister(numbers, asked)
	for n := range series {
		numbers.WithLabelValues(strconv.Itoa(n)).Set(float64(n))
	}
	answer := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	http.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		asked.Inc()
		answer.ServeHTTP(w, r)
	})
	log.Fatal(http.ListenAndServe(os.Args[1], nil))
}
