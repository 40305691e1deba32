//! Options of workers and drivers.
use std::ffi::{c_char, c_void, CStr};
use std::ptr;
use std::time::Duration;

use hvd_sys as sys;

use crate::error::{check, Result};
use crate::raw::{self, c_string};

/// How much the library has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// The value of option `log_level`.
    Default,
    /// Everything.
    Trace,
    /// For those who work on the library.
    Debug,
    /// What happens.
    Info,
    /// What should not happen.
    Warning,
    /// What went wrong.
    Error,
    /// Nothing.
    Off,
}

impl LogLevel {
    fn from_raw(level: sys::hvd_log_level) -> LogLevel {
        match level {
            sys::HVD_LOG_TRACE => LogLevel::Trace,
            sys::HVD_LOG_DEBUG => LogLevel::Debug,
            sys::HVD_LOG_INFO => LogLevel::Info,
            sys::HVD_LOG_WARNING => LogLevel::Warning,
            sys::HVD_LOG_OFF => LogLevel::Off,
            _ => LogLevel::Error,
        }
    }
}

/// A value that an option can be set to: text (parsed as the option's type) or one of that type.
pub trait OptionValue {
    #[doc(hidden)]
    fn set(&self, options: &mut Options, key: &str) -> Result<()>;
}

/// Typed options by key, listed by [`Options::describe`]. Each can also be given in the environment as
/// `HVD_<KEY IN CAPITALS>`; a value that was set wins. A duration is a [`Duration`], or text: seconds, or
/// with a unit ("250ms").
#[derive(Debug)]
pub struct Options {
    pub(crate) ptr: *mut sys::hvd_options,
}

// SAFETY: a handle that no thread owns; not Sync, as the C functions are not thread-safe.
unsafe impl Send for Options {}

type Log = Box<dyn Fn(LogLevel, &str) + Send + Sync>;

unsafe extern "C" fn log_line(userdata: *mut c_void, level: sys::hvd_log_level, message: *const c_char) {
    // SAFETY: userdata is the box given with this function; message is a string valid during the call.
    let (log, message) = unsafe { (&*userdata.cast::<Log>(), CStr::from_ptr(message)) };
    // There is nobody to tell of a panic in the log.
    let _ = raw::caught(|| log(LogLevel::from_raw(level), &message.to_string_lossy()));
}

/// Frees a `Box<T>` that was handed out as userdata.
pub(crate) unsafe extern "C" fn drop_box<T>(userdata: *mut c_void) {
    // SAFETY: the library calls it once, with the pointer that Box::into_raw gave.
    let _ = raw::caught(|| drop(unsafe { Box::from_raw(userdata.cast::<T>()) }));
}

impl Options {
    /// Options that are all at their defaults or the environment's values.
    pub fn new() -> Result<Options> {
        let mut ptr = ptr::null_mut();
        // SAFETY: ptr is a place for the result.
        check(|e| unsafe { sys::hvd_options_create(&mut ptr, e) })?;
        Ok(Options { ptr })
    }

    /// Sets an option. An unknown key, a wrong type or a value out of range is [`crate::Status::Invalid`].
    pub fn set(&mut self, key: &str, value: impl OptionValue) -> Result<&mut Self> {
        value.set(self, key)?;
        Ok(self)
    }

    /// The value in force (set, else environment, else default) as text.
    pub fn get(&mut self, key: &str) -> Result<String> {
        let key = c_string("key", key)?;
        let mut text = ptr::null();
        // SAFETY: the handle is ours; the text is copied before the next call on it.
        check(|e| unsafe { sys::hvd_options_get(self.ptr, key.as_ptr(), &mut text, e) })?;
        // SAFETY: set by the call above.
        Ok(unsafe { raw::text_of(text) })
    }

    /// Where log lines of at least `level` go. Called from any of the library's threads, one call at a time
    /// per context; it must not call back into the context.
    pub fn set_log(
        &mut self,
        level: LogLevel,
        log: impl Fn(LogLevel, &str) + Send + Sync + 'static,
    ) -> Result<&mut Self> {
        let userdata = Box::into_raw(Box::new(Box::new(log) as Log)).cast();
        // SAFETY: drop_box runs exactly once, also on failure.
        check(|e| unsafe {
            sys::hvd_options_set_log(
                self.ptr,
                level as sys::hvd_log_level,
                Some(log_line),
                userdata,
                Some(drop_box::<Log>),
                e,
            )
        })?;
        Ok(self)
    }

    /// One line per option: key, type, default, environment variable, meaning.
    pub fn describe() -> &'static str {
        // SAFETY: a static string.
        unsafe { raw::static_text(sys::hvd_options_describe()) }
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: the handle is ours; nothing keeps it.
        unsafe { sys::hvd_options_destroy(self.ptr) }
    }
}

impl OptionValue for &str {
    fn set(&self, options: &mut Options, key: &str) -> Result<()> {
        let (key, text) = (c_string("key", key)?, c_string("value", self)?);
        // SAFETY: the handle is ours, the strings live through the call. Likewise below.
        check(|e| unsafe { sys::hvd_options_set(options.ptr, key.as_ptr(), text.as_ptr(), e) })
    }
}
impl OptionValue for String {
    fn set(&self, options: &mut Options, key: &str) -> Result<()> {
        self.as_str().set(options, key)
    }
}
impl OptionValue for i64 {
    fn set(&self, options: &mut Options, key: &str) -> Result<()> {
        let key = c_string("key", key)?;
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_options_set_int(options.ptr, key.as_ptr(), *self, e) })
    }
}
impl OptionValue for i32 {
    fn set(&self, options: &mut Options, key: &str) -> Result<()> {
        i64::from(*self).set(options, key)
    }
}
impl OptionValue for Duration {
    fn set(&self, options: &mut Options, key: &str) -> Result<()> {
        let key = c_string("key", key)?;
        let nanoseconds = i64::try_from(self.as_nanos()).unwrap_or(i64::MAX);
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_options_set_duration(options.ptr, key.as_ptr(), nanoseconds, e) })
    }
}
impl OptionValue for bool {
    fn set(&self, options: &mut Options, key: &str) -> Result<()> {
        let key = c_string("key", key)?;
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_options_set_bool(options.ptr, key.as_ptr(), i32::from(*self), e) })
    }
}
