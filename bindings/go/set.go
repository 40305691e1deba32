// Process sets: collectives among some of the ranks.

package hvd

/*
#include "bridge.h"
*/
import "C"

import (
	"runtime"
	"slices"
	"unsafe"
)

// SetRule says who is in a set from the next generation on.
type SetRule int32

// Rules of sets.
const (
	SetWorkers SetRule = C.HVD_SET_RULE_WORKERS // the same workers, whatever their ranks are then
	SetRanks   SetRule = C.HVD_SET_RULE_RANKS   // the same rank numbers, as far as there are so many
	SetLocal   SetRule = C.HVD_SET_RULE_LOCAL   // all ranks of this worker's host; without a list of ranks
	SetCross   SetRule = C.HVD_SET_RULE_CROSS   // all ranks with this worker's local rank; without a list of ranks
	SetEnd     SetRule = C.HVD_SET_RULE_END     // nobody
)

// ProcessSet is a subset of the ranks, for collectives among them ([On]). Each member makes it by itself,
// with the same name and members.
type ProcessSet struct {
	worker *Worker
	c      *C.hvd_process_set
}

// NewProcessSet makes a set of ranks of the current generation, in any order.
func (w *Worker) NewProcessSet(name string, rule SetRule, ranks ...int32) (*ProcessSet, error) {
	text, free, err := cString("name", name)
	if err != nil {
		return nil, err
	}
	defer free()
	s := &ProcessSet{worker: w}
	err = w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status {
		list := (*C.int32_t)(unsafe.SliceData(slices.Clone(ranks))) // memory of its own, as cgo wants it
		return C.hvd_process_set_create(c, text, list, C.size_t(len(ranks)), C.hvd_set_rule(rule), &s.c, e)
	})
	if err != nil {
		return nil, err
	}
	runtime.SetFinalizer(s, (*ProcessSet).Close)
	return s, nil
}

// Close frees the set; operations under way go on.
func (s *ProcessSet) Close() {
	if s != nil {
		C.hvd_process_set_destroy(s.c)
	}
}

func (s *ProcessSet) call(function func(e *C.hvd_error) C.hvd_status) error {
	if s == nil {
		return newError(Invalid, "the process set is nil")
	}
	defer runtime.KeepAlive(s)
	return check(function)
}

// SetInfo is the place of this worker in a set. Not a member: ranks are -1, local and cross sizes 0.
type SetInfo struct {
	Rank, Size           int    // among the members
	LocalRank, LocalSize int    // among the members on this host
	CrossRank, CrossSize int    // among the members with the same local rank on all hosts
	Generation           uint64 // for which this holds
}

// Info never blocks.
func (s *ProcessSet) Info() (SetInfo, error) {
	i := C.hvd_process_set_info{struct_size: C.sizeof_hvd_process_set_info}
	if err := s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_process_set_get_info(s.c, &i, e) }); err != nil {
		return SetInfo{}, err
	}
	return SetInfo{int(i.rank), int(i.size), int(i.local_rank), int(i.local_size), int(i.cross_rank), int(i.cross_size),
		uint64(i.generation)}, nil
}

// Ranks of the members in the current generation, ascending.
func (s *ProcessSet) Ranks() ([]int32, error) {
	var ranks []int32
	err := s.call(func(e *C.hvd_error) C.hvd_status {
		var count C.size_t
		if status := C.hvd_process_set_get_ranks(s.c, nil, &count, e); status != C.HVD_OK {
			return status
		}
		ranks = make([]int32, count)
		return C.hvd_process_set_get_ranks(s.c, (*C.int32_t)(unsafe.SliceData(ranks)), &count, e)
	})
	return ranks, err
}
