// Sharded state: one range of a flat vector on each rank, with copies in the commit memory of others.

package hvd

/*
#include "bridge.h"
*/
import "C"

import (
	"runtime"
	"runtime/cgo"
	"unsafe"
)

// NoCopies as number of copies of a shard: none.
const NoCopies = -1

// ShardRange is the range of a rank in an even split: the first ranks have one element more where it does not
// come out even.
func ShardRange(elements int64, rank, size int) (offset, length int64, err error) {
	var o, l C.int64_t
	err = check(func(e *C.hvd_error) C.hvd_status {
		return C.hvd_shard_range(C.int64_t(elements), C.int32_t(rank), C.int32_t(size), &o, &l, e)
	})
	return int64(o), int64(l), err
}

// Shard is this rank's range of a sharded key. After a change of ranks it is another one, in another slice:
// look both up when the training function begins.
type Shard[T Element] struct {
	state    *State
	key      string
	elements int64
	offset   int64
	data     []T
}

// Data is the range's memory: write into it.
func (s *Shard[T]) Data() []T { return s.data }

// Offset is the place of its first element in the whole vector.
func (s *Shard[T]) Offset() int64 { return s.offset }

// SetData makes another slice the range's memory, of the same length. Nothing is copied. The next commit
// takes what it holds then; Restore and Sync write there.
func (s *Shard[T]) SetData(data []T) error {
	memory := unsafe.Pointer(unsafe.SliceData(data))
	err := s.state.setData(s.key, memory, len(data), uintptr(memory), func() error {
		if len(data) != len(s.data) {
			return newError(Invalid, "shard %q has %d elements here: expected the %d of its range", s.key, len(data),
				len(s.data))
		}
		return nil
	})
	if err == nil {
		s.data = data
	}
	return err
}

type resharder interface {
	reshard(asked *C.hvd_shard) error
}

func (s *Shard[T]) take(offset, length int64) unsafe.Pointer {
	s.offset, s.data = offset, make([]T, length)
	pinner := &runtime.Pinner{}
	if length > 0 {
		pinner.Pin(unsafe.SliceData(s.data))
	}
	if before := s.state.pinned[s.key]; before != nil {
		before.Unpin()
	}
	s.state.pinned[s.key] = pinner
	if length == 0 {
		return nil
	}
	return unsafe.Pointer(unsafe.SliceData(s.data))
}

func (s *Shard[T]) reshard(asked *C.hvd_shard) error {
	address := s.take(int64(asked.offset), int64(asked.elements))
	C.hvdgo_set_shard_data(asked, C.uintptr_t(uintptr(address)))
	return nil
}

// AddShard registers this rank's part of an even split of a vector of so many elements, all zero at first. It
// outlives the loss of `copies` workers at once (0: one, [NoCopies]: none). With shards all ranks take part
// in each Commit and Save.
func AddShard[T Element](s *State, key string, elements int64, copies int) (*Shard[T], error) {
	return addShard[T](s, key, elements, copies, nil)
}

// AddShardWithParity is AddShard for 1 / parity of a copy's memory: workers are in groups of parity + 1 or
// more, which keep each other's parity, and one of each group may be lost at once. parity is 2 to 64.
func AddShardWithParity[T Element](s *State, key string, elements int64, parity int) (*Shard[T], error) {
	return addShard[T](s, key, elements, 0, &parity)
}

func addShard[T Element](s *State, key string, elements int64, copies int, parity *int) (*Shard[T], error) {
	if s == nil {
		return nil, newError(Invalid, "the state is nil")
	}
	offset, length, err := ShardRange(elements, s.worker.Rank(), s.worker.Size())
	if err != nil {
		return nil, err
	}
	shard := &Shard[T]{state: s, key: key, elements: elements, offset: offset, data: make([]T, length)}
	t := Of(shard.data)
	if t.err != nil {
		return nil, t.err
	}
	memory := t.data
	if t.length == 0 {
		memory = nil
	}
	c := t.described()
	err = s.add(key, memory, func(key *C.char, e *C.hvd_error) C.hvd_status {
		handle := cgo.NewHandle(sharded{s, shard})
		if parity != nil {
			return C.hvdgo_add_shard_with_parity(s.c, key, &c, C.int64_t(elements), C.int64_t(offset),
				C.int32_t(*parity), C.uintptr_t(handle), e)
		}
		return C.hvdgo_add_shard(s.c, key, &c, C.int64_t(elements), C.int64_t(offset), C.int32_t(copies), C.uintptr_t(handle), e)
	})
	if err != nil {
		return nil, err
	}
	return shard, nil
}

// What a callback of a shard is about.
type sharded struct {
	state *State
	shard resharder
}

type losing struct {
	state *State
	load  func(sentence string) error
}

// OnLost says what to do if more workers are lost than there are copies: load is called on every rank, with a
// sentence that says what is lost, and loads everything that is registered from the program's own checkpoint.
// Without it the job ends.
func (s *State) OnLost(load func(sentence string) error) error {
	return s.call(func(e *C.hvd_error) C.hvd_status {
		return C.hvdgo_on_lost(s.c, C.uintptr_t(cgo.NewHandle(losing{s, load})), e)
	})
}

//export hvdgoReshard
func hvdgoReshard(handle C.uintptr_t, asked *C.hvd_shard) C.int32_t {
	r := cgo.Handle(handle).Value().(sharded)
	return r.state.caught("reshard", func() error { return r.shard.reshard(asked) })
}

//export hvdgoLost
func hvdgoLost(handle C.uintptr_t, sentence *C.char) C.int32_t {
	r := cgo.Handle(handle).Value().(losing)
	return r.state.caught("lost", func() error { return r.load(C.GoString(sentence)) })
}
