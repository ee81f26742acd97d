// Says that it has begun.
package main

import (
	"fmt"
	"net"
)

func main() {
	fmt.Println("begun")
	if false {
		net.Dial("tcp", "")
	}
}
