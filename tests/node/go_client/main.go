// SPDX-License-Identifier: Apache-2.0

// A gRPC client in Go on one connection: calls that are refused, held, and given up, beside calls that nothing holds.
//
//	goclient SOCKET CALLS FOLDER
//
// FOLDER has requests of CreateContainer: refused-SIZE and held-SIZE. It prints one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"google.golang.org/grpc/status"
)

const (
	service = "/runtime.v1.RuntimeService/"
	atOnce  = 16
	stall   = 5 * time.Second
)

// raw passes messages as the bytes that they are.
type raw struct{}

func (raw) Marshal(v interface{}) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v interface{}) error { *v.(*[]byte) = data; return nil }
func (raw) Name() string                               { return "proto" }

type outcome struct {
	Ended   map[string]int `json:"ended"`
	Wrong   []string       `json:"wrong"`
	Slowest float64        `json:"slowest"`
}

func main() {
	socket, folder := os.Args[1], os.Args[3]
	calls, err := strconv.Atoi(os.Args[2])
	check(err)
	connection, err := grpc.Dial("passthrough:///localhost", grpc.WithInsecure(), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(16<<20)))
	check(err)
	names, err := filepath.Glob(filepath.Join(folder, "*-*"))
	check(err)
	requests := map[string][]byte{}
	for _, name := range names {
		content, err := os.ReadFile(name)
		check(err)
		requests[filepath.Base(name)] = content
	}
	result := outcome{Ended: map[string]int{}, Wrong: []string{}}
	var lock sync.Mutex
	var group sync.WaitGroup
	slots := make(chan int, atOnce)
	for number := 0; number < calls; number++ {
		slots <- number
		group.Add(1)
		go func(number int) {
			defer group.Done()
			one(connection, requests, number, &result, &lock)
			<-slots
		}(number)
	}
	group.Wait()
	look(connection, &result, &lock)
	check(json.NewEncoder(os.Stdout).Encode(result))
}

func one(connection *grpc.ClientConn, requests map[string][]byte, number int, result *outcome, lock *sync.Mutex) {
	chance := rand.New(rand.NewSource(int64(number)))
	kinds := []string{"refused", "given up at once", "held and given up"}
	kind := kinds[chance.Intn(len(kinds))]
	prefix := "refused-"
	if kind == "held and given up" {
		prefix = "held-"
	}
	var request []byte
	// The order of a map is by chance.
	for name, content := range requests {
		if strings.HasPrefix(name, prefix) {
			request = content
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch kind {
	case "given up at once":
		time.AfterFunc(time.Duration(chance.Intn(3000))*time.Microsecond, cancel)
	case "held and given up":
		time.AfterFunc(time.Duration(20+chance.Intn(50))*time.Millisecond, cancel)
	}
	var answer []byte
	err := connection.Invoke(ctx, service+"CreateContainer", &request, &answer)
	code, text := status.Code(err).String(), fmt.Sprint(err)
	lock.Lock()
	result.Ended[kind+": "+code]++
	if code == "DeadlineExceeded" || code == "OK" || kind == "refused" && !strings.Contains(text, "waiting for sidecar") {
		result.Wrong = append(result.Wrong, kind+": "+text)
	}
	lock.Unlock()
	if number%10 == 0 {
		look(connection, result, lock)
	}
}

func look(connection *grpc.ClientConn, result *outcome, lock *sync.Mutex) {
	ctx, cancel := context.WithTimeout(context.Background(), stall)
	defer cancel()
	began := time.Now()
	var request, answer []byte
	err := connection.Invoke(ctx, service+"Version", &request, &answer)
	lock.Lock()
	defer lock.Unlock()
	if err != nil {
		result.Wrong = append(result.Wrong, fmt.Sprintf("Version: %v", err))
	}
	if took := time.Since(began).Seconds(); took > result.Slowest {
		result.Slowest = took
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
