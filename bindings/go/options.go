// Options of contexts and drivers as Go functions.

package hvd

/*
#include "bridge.h"
*/
import "C"

import (
	"fmt"
	"runtime/cgo"
	"sort"
	"time"
)

// LogLevel is how much the library has to say.
type LogLevel int32

// Levels of the log.
const (
	LogDefault LogLevel = C.HVD_LOG_DEFAULT // the value of option log_level
	LogTrace   LogLevel = C.HVD_LOG_TRACE
	LogDebug   LogLevel = C.HVD_LOG_DEBUG
	LogInfo    LogLevel = C.HVD_LOG_INFO
	LogWarning LogLevel = C.HVD_LOG_WARNING
	LogError   LogLevel = C.HVD_LOG_ERROR
	LogOff     LogLevel = C.HVD_LOG_OFF
)

// Options of a worker or a driver. What is not in Values comes from the environment (HVD_<KEY IN CAPITALS>),
// else is the default; see [DescribeOptions].
type Options struct {
	// Values by key: string, int, int64, bool or [time.Duration].
	Values map[string]any
	// Log gets the library's lines of at least LogLevel. It is called from any thread, one call at a time per
	// worker, and must not call back into the worker.
	Log      func(level LogLevel, message string)
	LogLevel LogLevel
}

// DescribeOptions has one line per option: key, type, default, environment variable, meaning.
func DescribeOptions() string { return C.GoString(C.hvd_options_describe()) }

// open makes the C library's options; they are freed by the function that it returns.
func (o *Options) open() (*C.hvd_options, func(), error) {
	if o == nil {
		return nil, func() {}, nil
	}
	var options *C.hvd_options
	if err := check(func(e *C.hvd_error) C.hvd_status { return C.hvd_options_create(&options, e) }); err != nil {
		return nil, nil, err
	}
	free := func() { C.hvd_options_destroy(options) }
	if err := o.fill(options); err != nil {
		free()
		return nil, nil, err
	}
	return options, free, nil
}

func (o *Options) fill(options *C.hvd_options) error {
	keys := make([]string, 0, len(o.Values))
	for key := range o.Values {
		keys = append(keys, key)
	}
	sort.Strings(keys) // so that the same one is told of first
	for _, key := range keys {
		if err := set(options, key, o.Values[key]); err != nil {
			return err
		}
	}
	if o.Log == nil {
		return nil
	}
	handle := cgo.NewHandle(o.Log)
	return check(func(e *C.hvd_error) C.hvd_status {
		return C.hvdgo_set_log(options, C.hvd_log_level(o.LogLevel), C.uintptr_t(handle), e)
	})
}

func set(options *C.hvd_options, key string, value any) error {
	name, free, err := cString("key", key)
	if err != nil {
		return err
	}
	defer free()
	text, freeText, err := cString("value", fmt.Sprint(value))
	if err != nil {
		return err
	}
	defer freeText()
	return check(func(e *C.hvd_error) C.hvd_status {
		switch v := value.(type) {
		case int:
			return C.hvd_options_set_int(options, name, C.int64_t(v), e)
		case int64:
			return C.hvd_options_set_int(options, name, C.int64_t(v), e)
		case time.Duration:
			return C.hvd_options_set_duration(options, name, C.int64_t(v), e)
		case bool:
			number := C.int32_t(0)
			if v {
				number = 1
			}
			return C.hvd_options_set_bool(options, name, number, e)
		default:
			return C.hvd_options_set(options, name, text, e)
		}
	})
}

//export hvdgoDestroy
func hvdgoDestroy(handle C.uintptr_t) {
	h := cgo.Handle(handle)
	if closer, ok := h.Value().(interface{ released() }); ok {
		closer.released()
	}
	h.Delete()
}

//export hvdgoLog
func hvdgoLog(handle C.uintptr_t, level C.hvd_log_level, message *C.char) {
	defer dropPanic()
	cgo.Handle(handle).Value().(func(LogLevel, string))(LogLevel(level), C.GoString(message))
}

// dropPanic ends a panic that nobody can be told of: it must not unwind the library's frames.
func dropPanic() { _ = recover() }
