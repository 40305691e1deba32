// What is used after its end: after Shutdown and Close, in a forked child, while an operation is under way.
package hvd_test

import (
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"libhvd/hvd"
)

func TestAfterShutdownAndCloseCallsAreClosed(t *testing.T) {
	for _, how := range []string{"shutdown", "close", "abort"} {
		w := alone(t)
		state, err := w.NewState()
		must(t, err)
		step := 0
		must(t, hvd.AddValue(state, "step", &step))
		sampler, err := w.NewSampler(hvd.SamplerOptions{Samples: 4, BatchSize: 2})
		must(t, err)
		events, err := w.Events(hvd.EventAll)
		must(t, err)
		op, err := w.StartBarrier(background, "before")
		must(t, err)
		must(t, op.Wait(background))
		switch how {
		case "shutdown":
			must(t, w.Shutdown(background))
		case "close":
			w.Close()
			w.Close()
			for range events.C { // closed
			}
			must(t, op.Wait(background)) // it had completed before
			if !op.Done() {
				t.Error("not done any more, now that the worker is closed")
			}
		case "abort":
			must(t, w.Abort("test"))
		}
		expect(t, w.Barrier(background, "late"), hvd.Closed)
		_, err = w.StartAllreduce(background, "late", hvd.Of([]float32{1}), hvd.Of([]float32{1}), hvd.Sum)
		expect(t, err, hvd.Closed)
		expect(t, state.Commit(), hvd.Closed)
		if how != "abort" {
			_, err = w.Membership()
			expect(t, err, hvd.Closed)
			equal(t, w.Rank(), -1)
			_, err = sampler.Next(nil)
			expect(t, err, hvd.Closed)
			expect(t, state.Run(background, func(context.Context) error { return nil }), hvd.Closed)
			_, err = w.Events(hvd.EventAll)
			expect(t, err, hvd.Closed)
		}
		events.Close()
		state.Close()
		sampler.Close()
	}
}

func TestCloseWhileOthersCall(t *testing.T) {
	for range 20 {
		w := alone(t)
		var all sync.WaitGroup
		for i := range 4 {
			all.Add(1)
			go func() {
				defer all.Done()
				x := []float32{1}
				for {
					if err := w.Allreduce(background, "goroutine "+strconv.Itoa(i), hvd.Of(x), hvd.Of(x), hvd.Sum); err != nil {
						expect(t, err, hvd.Closed)
						return
					}
				}
			}()
		}
		w.Close()
		all.Wait()
	}
}

func TestAfterAForkCallsAreErrors(t *testing.T) {
	w := alone(t)
	state, err := w.NewState()
	must(t, err)
	set, err := w.NewProcessSet("all", hvd.SetWorkers, 0)
	must(t, err)
	driver, err := hvd.NewDriver(&hvd.Options{Values: map[string]any{"hosts": "localhost:1"}})
	must(t, err)
	t.Cleanup(driver.Close)
	sampler, err := w.NewSampler(hvd.SamplerOptions{Samples: 4, BatchSize: 2})
	must(t, err)
	events, err := w.Events(hvd.EventAll)
	must(t, err)
	x := []float32{1}
	op, err := w.StartAllreduce(background, "before", hvd.Of(x), hvd.Of(x), hvd.Sum)
	must(t, err)
	inTime, cancel := context.WithTimeout(background, time.Minute)
	defer cancel()
	// The child is one thread of the parent: it makes calls that fail at once, and ends. A collector would wait
	// for the other threads.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	child, _, errno := syscall.RawSyscall(syscall.SYS_FORK, 0, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	if child == 0 {
		code := uintptr(0)
		for i, err := range []error{
			w.Barrier(background, "child"), state.Commit(), driver.Start(), w.Abort("child"),
			func() error { _, err := set.Ranks(); return err }(),
			func() error { _, err := w.Membership(); return err }(),
			func() error { _, err := sampler.Next(nil); return err }(),
			func() error { _, err := op.Output(0); return err }(),
			func() error { _, err := w.NewState(); return err }(),
			func() error { _, err := w.Events(hvd.EventAll); return err }(),
			op.Wait(background), op.Wait(inTime), state.Restore(), driver.Stop("child"), w.Shutdown(background),
			state.Run(background, func(context.Context) error { return nil }),
		} {
			if e, ok := err.(*hvd.Error); !ok || e.Status != hvd.Invalid {
				code = uintptr(i) + 1
			}
		}
		if op.Done() {
			code = 100
		}
		events.Close()
		set.Close()
		sampler.Close()
		state.Close()
		driver.Close()
		w.Close() // all of them leave the parent's alone
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, code, 0, 0)
	}
	var status syscall.WaitStatus
	for {
		if _, err = syscall.Wait4(int(child), &status, 0, nil); err != syscall.EINTR {
			break
		}
	}
	must(t, err)
	equal(t, status.ExitStatus(), 0)
	must(t, op.Wait(background))
	must(t, state.Commit())
	must(t, w.Barrier(background, "all is well"))
	must(t, w.Shutdown(background))
}

// What nobody refers to any more is not collected before the operation that reads and writes it has
// completed.
func TestMemoryIsKeptUntilTheOperationHasCompleted(t *testing.T) {
	first, second := pair(t)
	const n = 1 << 16
	func() {
		data := slices.Repeat([]float32{1}, n)
		_, err := first.StartAllreduce(background, "x", hvd.Of(data), hvd.Of(data), hvd.Sum)
		must(t, err)
	}()
	var others [][]float32
	for range 8 {
		runtime.GC()
		others = append(others, slices.Repeat([]float32{7}, n))
	}
	mine := slices.Repeat([]float32{2}, n)
	must(t, second.Allreduce(background, "x", hvd.Of(mine), hvd.Of(mine), hvd.Sum))
	var both sync.WaitGroup
	both.Add(1)
	go func() { defer both.Done(); _ = first.Barrier(background, "behind it") }()
	must(t, second.Barrier(background, "behind it"))
	both.Wait()
	equal(t, [2]float32{mine[0], mine[n-1]}, [2]float32{3, 3})
	for _, other := range others {
		if slices.Max(other) != 7 || slices.Min(other) != 7 {
			t.Fatal("the operation wrote into memory that was another's")
		}
	}
}

// Goroutines that wait are parked: those whose context can be cancelled, and those that wait for much.
func TestWaitingTakesNoThreads(t *testing.T) {
	first, second := pair(t)
	const many = 40
	cancellable, cancel := context.WithCancel(background)
	defer cancel()
	sum := func(w *hvd.Worker, i int) error {
		ctx, data := cancellable, slices.Repeat([]float32{1}, 8)
		if i%2 == 0 {
			ctx, data = background, slices.Repeat([]float32{1}, 1<<18)
		}
		err := w.Allreduce(ctx, "x"+strconv.Itoa(i), hvd.Of(data), hvd.Of(data), hvd.Sum)
		if err == nil && (data[0] != 2 || data[len(data)-1] != 2) {
			t.Errorf("operation %d gave %v, %v: expected 2", i, data[0], data[len(data)-1])
		}
		return err
	}
	ends := make(chan error)
	for i := range many {
		go func() { ends <- sum(first, i) }()
	}
	stacks := make([]byte, 1<<20)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		parked := strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "[IO wait")
		if parked >= many {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines are parked: expected %d", parked, many)
		}
	}
	for i := range many {
		go func() { ends <- sum(second, i) }()
	}
	for range 2 * many {
		must(t, <-ends)
	}
}

func TestAnOperationUnderWayEndsWithItsWorker(t *testing.T) {
	first, second := pair(t)
	x := []float32{1}
	op, err := first.StartAllreduce(background, "x", hvd.Of(x), hvd.Of(x), hvd.Sum)
	must(t, err)
	inTime, cancel := context.WithTimeout(background, time.Minute)
	defer cancel()
	ends := make(chan error)
	for _, ctx := range []context.Context{background, inTime} {
		go func() { ends <- op.Wait(ctx) }()
	}
	must(t, first.Abort("enough"))
	expect(t, <-ends, hvd.Closed)
	expect(t, <-ends, hvd.Closed)
	first.Close()
	expect(t, op.Wait(background), hvd.Closed)
	_, err = op.Output(0)
	expect(t, err, hvd.Closed)
	expect(t, second.Barrier(background, "alone now"), hvd.PeerLost)
}

// What an operation and a state had pinned is collected, and so is the worker. The runtime panics where
// something is collected that is still pinned.
func TestACloseLetsGoOfEverything(t *testing.T) {
	gone := make(chan string, 3)
	t.Run("while an operation is under way", func(t *testing.T) {
		first, _ := pair(t)
		sent, kept := new([1000]float32), new([1000]float32)
		runtime.SetFinalizer(sent, func(*[1000]float32) { gone <- "the operation's memory" })
		runtime.SetFinalizer(kept, func(*[1000]float32) { gone <- "the state's memory" })
		runtime.SetFinalizer(first, func(*hvd.Worker) { gone <- "the worker" })
		_, err := first.StartAllreduce(background, "x", hvd.Of(sent[:]), hvd.Of(sent[:]), hvd.Sum)
		must(t, err)
		state, err := first.NewState()
		must(t, err)
		must(t, state.AddTensor("weights", hvd.Of(kept[:])))
		first.Close()
	})
	deadline := time.After(time.Minute)
	for left := []string{"the operation's memory", "the state's memory", "the worker"}; len(left) > 0; {
		runtime.GC()
		select {
		case what := <-gone:
			left = slices.DeleteFunc(left, func(other string) bool { return other == what })
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("never collected: %s", strings.Join(left, ", "))
		}
	}
}

func TestWhatCameOutOutlivesItsWorker(t *testing.T) {
	w := alone(t)
	buffer, err := w.Allgather(background, "rows", hvd.Of([]int32{1, 2, 3}))
	must(t, err)
	w.Close()
	runtime.GC()
	equal(t, slice[int32](t, buffer, nil), []int32{1, 2, 3})
}

func TestOperationsThatNobodyWaitsFor(t *testing.T) {
	w := alone(t)
	for i := range 300 {
		x := make([]float32, 1000)
		_, err := w.StartAllreduce(background, "dropped "+strconv.Itoa(i), hvd.Of(x), hvd.Of(x), hvd.Sum)
		must(t, err)
	}
	must(t, w.Barrier(background, "all is well"))
}
