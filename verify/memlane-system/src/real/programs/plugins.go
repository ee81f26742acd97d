package main

import (
	"log"
	"plugin"
)

// Added to a program: it can load plugins.
func init() {
	if _, err := plugin.Open("/no/such/plugin.so"); err == nil {
		log.Fatal("a plugin that does not exist was loaded")
	}
}
