// Says that it has begun. With the argument "wait", it then waits until its standard input ends.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	fmt.Println("begun")
	if len(os.Args) > 1 && os.Args[1] == "wait" {
		io.Copy(io.Discard, os.Stdin)
	}
	if false {
		net.Dial("tcp", "")
	}
}
