// One rank of the benchmark of languages (bindings/tests/bench.py): the protocol of tests/bench/ranks.h, with
// allreduce through this package.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"libhvd/hvd"
)

// The barrier, which all languages' ranks have in shared memory.
type hall struct {
	arrived, round *atomic.Uint32
	size           uint32
}

func openHall(path string, size int) (hall, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return hall{}, err
	}
	defer file.Close()
	at, err := syscall.Mmap(int(file.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return hall{}, err
	}
	return hall{(*atomic.Uint32)(unsafe.Pointer(&at[0])), (*atomic.Uint32)(unsafe.Pointer(&at[64])), uint32(size)}, nil
}

// meet yields while it waits: with more ranks than cores nobody may be kept from arriving.
func (h hall) meet() error {
	round := h.round.Load()
	if h.arrived.Add(1) == h.size {
		h.arrived.Store(0)
		h.round.Add(1)
		return nil
	}
	for deadline := time.Now().Add(time.Minute); h.round.Load() == round; {
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		if time.Now().After(deadline) {
			return fmt.Errorf("the other ranks did not come to the barrier")
		}
	}
	return nil
}

func nowNS() int64 {
	var t syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&t)), 0)
	return t.Nano()
}

type rank struct {
	worker       *hvd.Worker
	number, size int
	hall         hall
	data         []float32
}

func (r *rank) call() error {
	return r.worker.Allreduce(context.Background(), "gradients", hvd.Of(r.data), hvd.Of(r.data), hvd.Sum)
}

func (r *rank) check() error {
	value := func(i, rank int) float32 { return float32(i%13 + rank*3) }
	for i := range r.data {
		r.data[i] = value(i, r.number)
	}
	if err := r.call(); err != nil {
		return err
	}
	for i, x := range r.data {
		want := float32(0)
		for other := range r.size {
			want += value(i, other)
		}
		if x != want {
			return fmt.Errorf("element %d is %v: expected %v", i, x, want)
		}
	}
	return nil
}

func (r *rank) measure(bytes, samples, batch, warm, check int) (string, error) {
	if len(r.data) != bytes/4 {
		r.data = make([]float32, bytes/4)
	}
	if check != 0 {
		if err := r.check(); err != nil {
			return "", err
		}
	}
	clear(r.data)
	for range warm {
		if err := r.call(); err != nil {
			return "", err
		}
	}
	reply := strings.Builder{}
	reply.WriteString("ok")
	for range samples {
		if err := r.hall.meet(); err != nil {
			return "", err
		}
		began := nowNS()
		for range batch {
			if err := r.call(); err != nil {
				return "", err
			}
		}
		fmt.Fprintf(&reply, " %d %d", began, nowNS())
	}
	return reply.String(), nil
}

func run() error {
	directory := os.Getenv("HVD_BENCH_DIRECTORY")
	worker, err := hvd.Init(context.Background(), nil)
	if err != nil {
		return err
	}
	defer worker.Close()
	r := &rank{worker: worker, number: worker.Rank(), size: worker.Size()}
	if r.hall, err = openHall(directory+"/barrier", r.size); err != nil {
		return err
	}
	commands, err := os.Open(fmt.Sprintf("%s/commands.%d", directory, r.number))
	if err != nil {
		return err
	}
	replies, err := os.OpenFile(fmt.Sprintf("%s/replies.%d", directory, r.number), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	fmt.Fprintln(replies, "ready")
	for lines := bufio.NewScanner(commands); lines.Scan(); {
		var bytes, samples, batch, warm, check int
		reply := "ok"
		switch line := lines.Text(); {
		case line == "quit":
			return worker.Shutdown(context.Background())
		case line == "release":
			r.data = nil
			runtime.GC()
		default:
			if _, err := fmt.Sscanf(line, "run allreduce %d %d %d %d %d", &bytes, &samples, &batch, &warm, &check); err != nil {
				return fmt.Errorf("unknown command %s: %w", line, err)
			}
			if reply, err = r.measure(bytes, samples, batch, warm, check); err != nil {
				return err
			}
		}
		fmt.Fprintln(replies, reply)
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
