// The sampler, which deals a data set out to the ranks.

package hvd

/*
#include "bridge.h"
*/
import "C"

import (
	"bytes"
	"runtime"
	"unsafe"
)

// Padding says what becomes of a last round that the ranks can't share evenly.
type Padding int32

// Paddings.
const (
	PaddingNone   Padding = C.HVD_PADDING_NONE   // dealt as it is: each sample exactly once
	PaddingRepeat Padding = C.HVD_PADDING_REPEAT // filled up with the first samples of the epoch
	PaddingDrop   Padding = C.HVD_PADDING_DROP   // left out of this epoch
)

// SamplerOptions say how a data set is dealt out: the same on all ranks.
type SamplerOptions struct {
	Samples   uint64 // of the data set
	BatchSize uint64 // of one rank
	Seed      uint64 // of the order
	InOrder   bool   // not shuffled: every epoch is 0, 1, 2 ...
	Padding   Padding
}

// Sampler deals the samples 0 .. Samples-1 out to the ranks, each exactly once in an epoch, also when the
// number of ranks changes on the way.
type Sampler struct {
	worker *Worker
	c      *C.hvd_sampler
	batch  int
}

// NewSampler makes a sampler at the beginning of epoch 0.
func (w *Worker) NewSampler(options SamplerOptions) (*Sampler, error) {
	o := C.hvd_sampler_options{struct_size: C.sizeof_hvd_sampler_options, samples: C.uint64_t(options.Samples),
		batch_size: C.uint64_t(options.BatchSize), seed: C.uint64_t(options.Seed), padding: C.hvd_padding(options.Padding)}
	if options.InOrder {
		o.in_order = 1
	}
	s := &Sampler{worker: w, batch: int(options.BatchSize)}
	err := w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status { return C.hvd_sampler_create(c, &o, &s.c, e) })
	if err != nil {
		return nil, err
	}
	runtime.SetFinalizer(s, (*Sampler).Close)
	return s, nil
}

// Close frees the sampler; a state keeps what it needs of it.
func (s *Sampler) Close() {
	if s != nil {
		C.hvd_sampler_destroy(s.c)
	}
}

func (s *Sampler) call(function func(e *C.hvd_error) C.hvd_status) error {
	if s == nil {
		return newError(Invalid, "the sampler is nil")
	}
	defer runtime.KeepAlive(s)
	return check(function)
}

// Batch is one rank's part of a round.
type Batch struct {
	Indices    []uint64 // this rank's samples
	Generation uint64   // in which it was dealt
	Epoch      uint64
	Position   uint64 // where in the epoch's order the round begins
	Total      uint64 // samples of all ranks together; 0: the epoch is over
	c          C.hvd_sampler_batch
}

// Next is the first round that is not recorded (the same until it is), or with after the one that follows
// that, to load data ahead.
func (s *Sampler) Next(after *Batch) (*Batch, error) {
	var previous *C.hvd_sampler_batch
	if after != nil {
		c := after.c // a copy: cgo looks at all pointers of the object that an argument points into
		previous = &c
	}
	b := &Batch{c: C.hvd_sampler_batch{struct_size: C.sizeof_hvd_sampler_batch}}
	err := s.call(func(e *C.hvd_error) C.hvd_status {
		b.Indices = make([]uint64, s.batch)
		return C.hvd_sampler_next(s.c, previous, (*C.uint64_t)(unsafe.SliceData(b.Indices)), C.size_t(s.batch), &b.c, e)
	})
	if err != nil {
		return nil, err
	}
	b.Indices = b.Indices[:b.c.count]
	b.Generation, b.Epoch = uint64(b.c.generation), uint64(b.c.epoch)
	b.Position, b.Total = uint64(b.c.position), uint64(b.c.total)
	return b, nil
}

// Record says that the round was processed: every rank calls it at the same point.
func (s *Sampler) Record(batch *Batch) error {
	if batch == nil {
		return newError(Invalid, "the batch is nil")
	}
	return s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_sampler_record(s.c, &batch.c, e) })
}

// SetEpoch begins another epoch; the one that it is in changes nothing.
func (s *Sampler) SetEpoch(epoch uint64) error {
	return s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_sampler_set_epoch(s.c, C.uint64_t(epoch), e) })
}

// SamplerInfo is where a sampler is.
type SamplerInfo struct {
	Epoch, Samples, BatchSize uint64
	Processed                 uint64 // of this epoch, by all ranks
	Remaining                 uint64
	Rounds                    uint64 // left in this epoch with the present size
}

// Info tells where the sampler is.
func (s *Sampler) Info() (SamplerInfo, error) {
	i := C.hvd_sampler_info{struct_size: C.sizeof_hvd_sampler_info}
	if err := s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_sampler_get_info(s.c, &i, e) }); err != nil {
		return SamplerInfo{}, err
	}
	return SamplerInfo{uint64(i.epoch), uint64(i.samples), uint64(i.batch_size), uint64(i.processed), uint64(i.remaining),
		uint64(i.rounds)}, nil
}

// MarshalBinary makes a checkpoint of the program's own: the same bytes on every rank.
func (s *Sampler) MarshalBinary() ([]byte, error) {
	data := make([]byte, C.HVD_SAMPLER_SAVED_BYTES)
	err := s.call(func(e *C.hvd_error) C.hvd_status {
		return C.hvd_sampler_save(s.c, unsafe.Pointer(unsafe.SliceData(data)), C.size_t(len(data)), e)
	})
	return data, err
}

// UnmarshalBinary takes what MarshalBinary made, on all ranks alike.
func (s *Sampler) UnmarshalBinary(data []byte) error {
	if len(data) == 0 {
		return newError(Invalid, "no bytes to load a sampler from")
	}
	data = bytes.Clone(data) // memory of its own, as cgo wants it
	return s.call(func(e *C.hvd_error) C.hvd_status {
		return C.hvd_sampler_load(s.c, unsafe.Pointer(unsafe.SliceData(data)), C.size_t(len(data)), e)
	})
}
