// What goes between two ranks, to one rank and from one; objects of all ranks; a worker before it has joined.
package hvd_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"libhvd/hvd"
)

// both runs a function as each of two workers.
func both(t *testing.T, function func(w *hvd.Worker, rank int) error) {
	t.Helper()
	first, second := pair(t)
	var all sync.WaitGroup
	problems := [2]error{}
	for rank, w := range []*hvd.Worker{first, second} {
		all.Add(1)
		go func() { defer all.Done(); problems[rank] = function(w, rank) }()
	}
	all.Wait()
	must(t, problems[0])
	must(t, problems[1])
}

func TestSendAndReceive(t *testing.T) {
	both(t, func(w *hvd.Worker, rank int) error {
		mine, theirs := []float32{float32(rank), 7}, make([]float32, 2)
		op, err := w.StartSend(background, "x", hvd.Of(mine), 1-rank)
		if err != nil {
			return err
		}
		if err := w.Receive(background, "x", hvd.Of(theirs), 1-rank); err != nil {
			return err
		}
		equal(t, theirs, []float32{float32(1 - rank), 7})
		expect(t, w.Send(background, "x", hvd.Of(mine), rank), hvd.Invalid, "the other rank is")
		return op.Wait(background)
	})
}

func TestToOneAndFromOne(t *testing.T) {
	both(t, func(w *hvd.Worker, rank int) error {
		sum := []int32{-1}
		if err := w.Reduce(background, "sum", hvd.Of([]int32{int32(rank) + 1}), hvd.Of(sum), hvd.Sum, 1); err != nil {
			return err
		}
		equal(t, sum[0], []int32{-1, 3}[rank])
		rows, received, err := w.Gather(background, "rows", hvd.Of(make([]uint8, rank+1)), 0)
		if err != nil {
			return err
		}
		if rank == 0 {
			equal(t, received, []int64{1, 2})
			equal(t, rows.Shape(), []int{3})
		} else {
			equal(t, rows.Shape(), []int{0})
		}
		share := make([]int64, 4)
		written, err := w.Scatter(background, "share", hvd.Of([]int64{5, 6, 7}), hvd.Of(share), 0)
		if err != nil {
			return err
		}
		equal(t, share[:written], [][]int64{{5, 6}, {7}}[rank])
		return nil
	})
}

func TestObjectsOfAllRanks(t *testing.T) {
	both(t, func(w *hvd.Worker, rank int) error {
		all, err := w.AllgatherObject(background, "all", []byte(strings.Repeat("ab", rank)))
		if err != nil {
			return err
		}
		equal(t, string(all[0])+"|"+string(all[1]), "|ab")
		one, err := w.GatherObject(background, "one", []byte{byte(rank)}, 1)
		if err != nil {
			return err
		}
		equal(t, len(one[0]), rank)
		object, err := w.BroadcastObject(background, "object", []byte{byte(rank), 9}, 1, hvd.Wait(time.Minute))
		if err != nil {
			return err
		}
		equal(t, object, []byte{1, 9})
		return w.Barrier(background, "") // it gets a number
	})
}

// Cancelling Init ends it, and leaves nothing behind.
func TestInitIsCancelled(t *testing.T) {
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = deaf.Close() })
	arrived := make(chan net.Conn, 1)
	go func() {
		if connection, err := deaf.Accept(); err == nil {
			arrived <- connection
		}
	}()
	ctx, cancel := context.WithCancel(background)
	go func() { defer cancel(); connection := <-arrived; t.Cleanup(func() { _ = connection.Close() }) }()
	_, err = hvd.Init(ctx, &hvd.Options{Values: map[string]any{"driver": deaf.Addr().String(), "worker": 1,
		"secret": strings.Repeat("s", 32)}})
	expect(t, err, hvd.Closed, "canceled")
	if ctx.Err() == nil {
		t.Error("init ended before it was cancelled")
	}
}
