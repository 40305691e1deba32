// Slices as tensors: dtype, shape, and memory pinned while C borrows it.

package hvd

/*
#include "bridge.h"
*/
import "C"

import (
	"math"
	"runtime"
	"unsafe"
)

// Dtype is the type of a tensor's elements.
type Dtype int32

// Element types.
const (
	Uint8Type    Dtype = C.HVD_DTYPE_UINT8
	Int8Type     Dtype = C.HVD_DTYPE_INT8
	Uint16Type   Dtype = C.HVD_DTYPE_UINT16
	Int16Type    Dtype = C.HVD_DTYPE_INT16
	Uint32Type   Dtype = C.HVD_DTYPE_UINT32
	Int32Type    Dtype = C.HVD_DTYPE_INT32
	Uint64Type   Dtype = C.HVD_DTYPE_UINT64
	Int64Type    Dtype = C.HVD_DTYPE_INT64
	Float16Type  Dtype = C.HVD_DTYPE_FLOAT16
	BFloat16Type Dtype = C.HVD_DTYPE_BFLOAT16
	Float32Type  Dtype = C.HVD_DTYPE_FLOAT32
	Float64Type  Dtype = C.HVD_DTYPE_FLOAT64
	BoolType     Dtype = C.HVD_DTYPE_BOOL
	// States take these; no backend has collectives of them yet.
	Float8E4M3FNType   Dtype = C.HVD_DTYPE_FLOAT8_E4M3FN
	Float8E5M2Type     Dtype = C.HVD_DTYPE_FLOAT8_E5M2
	Float8E4M3FNUZType Dtype = C.HVD_DTYPE_FLOAT8_E4M3FNUZ
	Float8E5M2FNUZType Dtype = C.HVD_DTYPE_FLOAT8_E5M2FNUZ
	Complex64Type      Dtype = C.HVD_DTYPE_COMPLEX64
	Complex128Type     Dtype = C.HVD_DTYPE_COMPLEX128
)

// Size of one element in bytes, or 0 if the dtype is unknown.
func (d Dtype) Size() int { return int(C.hvd_dtype_size(C.hvd_dtype(d))) }

func (d Dtype) String() string { return C.GoString(C.hvd_dtype_name(C.hvd_dtype(d))) }

// Float16 is an IEEE 754 half, by its bits.
type Float16 uint16

// BFloat16 is the upper half of a float32, by its bits.
type BFloat16 uint16

// NewBFloat16 is the nearest one, ties to even.
func NewBFloat16(value float32) BFloat16 {
	bits := math.Float32bits(value)
	if value != value {
		return BFloat16(bits>>16 | 0x40)
	}
	return BFloat16((bits + 0x7fff + bits>>16&1) >> 16)
}

// Float32 is the same value.
func (b BFloat16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// NewFloat16 is the nearest half, ties to even.
func NewFloat16(value float32) Float16 {
	bits := math.Float32bits(value)
	sign, magnitude := Float16(bits>>16&0x8000), bits&0x7fffffff
	switch {
	case magnitude > 0x7f800000:
		return sign | 0x7e00 // not a number
	case magnitude >= 0x47800000:
		return sign | 0x7c00 // 65536 and more, infinity
	case magnitude < 0x38800000:
		// Below 2^-14 halves are multiples of 2^-24, as are floats from 0.5 on: the addition rounds.
		rounded := math.Float32bits(math.Float32frombits(magnitude) + 0.5)
		return sign | Float16(rounded-math.Float32bits(0.5))
	}
	// A carry out of the fraction raises the exponent, to infinity at last.
	return sign | Float16((magnitude-0x38000000+0x0fff+magnitude>>13&1)>>13)
}

// Float32 is the same value.
func (h Float16) Float32() float32 {
	sign, exponent, fraction := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exponent {
	case 0:
		return math.Float32frombits(sign | math.Float32bits(float32(fraction)*0x1p-24))
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

// Element is what a tensor may consist of.
type Element interface {
	uint8 | int8 | uint16 | int16 | uint32 | int32 | uint64 | int64 | Float16 | BFloat16 | float32 | float64 | bool
}

func dtypeOf[T Element]() Dtype {
	var zero T
	switch any(zero).(type) {
	case uint8:
		return Uint8Type
	case int8:
		return Int8Type
	case uint16:
		return Uint16Type
	case int16:
		return Int16Type
	case uint32:
		return Uint32Type
	case int32:
		return Int32Type
	case uint64:
		return Uint64Type
	case int64:
		return Int64Type
	case Float16:
		return Float16Type
	case BFloat16:
		return BFloat16Type
	case float32:
		return Float32Type
	case float64:
		return Float64Type
	}
	return BoolType
}

// Tensor is a slice with a shape: the program's memory, used where it is. What is wrong with it is told by
// the call that it is given to.
type Tensor struct {
	c      C.hvdgo_tensor // without the address
	data   unsafe.Pointer
	length int
	err    error
}

// Of is a tensor of one dimension.
func Of[T Element](data []T) Tensor {
	t := Tensor{length: len(data), data: unsafe.Pointer(unsafe.SliceData(data))}
	t.c.struct_size = C.sizeof_hvdgo_tensor
	t.c.dtype = C.hvd_dtype(dtypeOf[T]())
	t.c.ndim = 1
	t.c.shape[0] = C.int64_t(len(data))
	return t
}

// Scalar is a tensor without dimensions.
func Scalar[T Element](value *T) Tensor {
	if value == nil {
		return Tensor{err: newError(Invalid, "the scalar is nil")}
	}
	return Of(unsafe.Slice(value, 1)).Reshape()
}

// OnDevice is a tensor in a CUDA device's memory, at an address there. stream is a CUstream or cudaStream_t,
// in whose order the library's work runs; 0 is the default stream. The program sees to it that the memory
// holds as many elements as shape says and stays until then.
func OnDevice(address uintptr, dtype Dtype, device int, stream uintptr, shape ...int) Tensor {
	t := Tensor{length: 1}
	for _, n := range shape {
		t.length *= n
	}
	t.c.struct_size = C.sizeof_hvdgo_tensor
	t.c.data = C.uintptr_t(address)
	t.c.dtype = C.hvd_dtype(dtype)
	t.c.memory = C.HVD_MEMORY_CUDA
	t.c.device = C.int32_t(device)
	if int(t.c.device) != device {
		t.err = newError(Invalid, "device is %d: expected a 32-bit number", device)
	}
	t.c.stream = C.uintptr_t(stream)
	return t.Reshape(shape...)
}

// Reshape gives the tensor dimensions; it must have as many elements.
func (t Tensor) Reshape(shape ...int) Tensor {
	if t.err != nil {
		return t
	}
	if len(shape) > C.HVD_MAX_DIMS {
		t.err = newError(Invalid, "shape %v has %d dimensions: expected at most %d", shape, len(shape), C.HVD_MAX_DIMS)
		return t
	}
	product := 1
	for i, n := range shape {
		if n < 0 || n > 0 && product > math.MaxInt/n {
			product = -1
			break
		}
		product *= n
		t.c.shape[i] = C.int64_t(n)
	}
	if product != t.length {
		t.err = newError(Invalid, "shape %v does not fit a slice of %d elements", shape, t.length)
	}
	t.c.ndim = C.int32_t(len(shape))
	return t
}

// Strided is [Tensor.Reshape] for arrays that know strides (in elements): an error unless they are contiguous
// and row-major.
func (t Tensor) Strided(shape, strides []int) Tensor {
	t = t.Reshape(shape...)
	if t.err != nil || t.length == 0 {
		return t
	}
	fits, product := len(strides) == len(shape), 1
	for i := len(shape) - 1; i >= 0 && fits; i-- {
		fits = shape[i] == 1 || strides[i] == product
		product *= shape[i]
	}
	if !fits {
		t.err = newError(Invalid, "a tensor of shape %v with strides %v is not contiguous: expected row-major", shape, strides)
	}
	return t
}

// pin keeps the memory where it is. What is not Go's memory stays where it is anyway.
func (t Tensor) pin(pinner *runtime.Pinner) {
	if t.data != nil && t.length > 0 {
		pinner.Pin(t.data)
	}
}

// described is the descriptor with the address, for memory that is pinned.
func (t Tensor) described() C.hvdgo_tensor {
	c := t.c
	if c.memory != C.HVD_MEMORY_HOST {
		return c
	}
	c.data = C.uintptr_t(uintptr(t.data))
	if t.length == 0 { // NULL would mean that the library allocates an output
		c.data = C.uintptr_t(uintptr(unsafe.Pointer(&empty)))
	}
	return c
}

var empty [8]byte // where tensors without elements are; never touched

func shapeOf(c *C.hvdgo_tensor) []int {
	shape := make([]int, c.ndim)
	for i := range shape {
		shape[i] = int(c.shape[i])
	}
	return shape
}

// Buffer is a tensor of the library's: what came out of an operation whose size others decide.
type Buffer struct {
	op *Op // which owns the memory
	c  C.hvdgo_tensor
}

// Shape is the elements per dimension.
func (b *Buffer) Shape() []int { return shapeOf(&b.c) }

// Dtype is the type of the elements.
func (b *Buffer) Dtype() Dtype { return Dtype(b.c.dtype) }

// Slice is a copy of a buffer's elements, row-major; [Invalid] if they are of another type.
func Slice[T Element](b *Buffer) ([]T, error) {
	if b == nil {
		return nil, newError(Invalid, "the buffer is nil")
	}
	if want := dtypeOf[T](); want != b.Dtype() {
		return nil, newError(Invalid, "the buffer's dtype is %v: it can't be had as %v", b.Dtype(), want)
	}
	length := 1
	for _, n := range b.Shape() {
		length *= n
	}
	result := make([]T, length)
	if length > 0 {
		copy(result, unsafe.Slice((*T)(C.hvdgo_pointer(b.c.data)), length))
	}
	runtime.KeepAlive(b.op)
	return result, nil
}
