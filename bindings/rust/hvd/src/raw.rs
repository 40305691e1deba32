//! What all of the boundary needs: texts, durations, panics.
use std::any::Any;
use std::ffi::{c_char, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

use crate::error::{Error, Result};

/// # Safety
/// `text` is NULL or a NUL-terminated string that is never freed.
pub(crate) unsafe fn static_text(text: *const c_char) -> &'static str {
    if text.is_null() {
        return "";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

/// # Safety
/// `text` is NULL or a NUL-terminated string.
pub(crate) unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A fixed field of a C struct, up to its NUL.
pub(crate) fn field(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn c_string(what: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{what} {text:?} has a NUL byte: expected none")))
}

/// A name on the stack: operations are called too often for an allocation each.
pub(crate) struct Name([u8; 257]);

impl Name {
    pub(crate) fn new(what: &str, text: &str) -> Result<Name> {
        let bytes = text.as_bytes();
        if bytes.len() > 255 || bytes.contains(&0) {
            return Err(Error::invalid(format!("{what} {text:?}: expected 1 to 255 bytes without NUL")));
        }
        let mut name = [0; 257];
        name[..bytes.len()].copy_from_slice(bytes);
        Ok(Name(name))
    }
    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

/// The library's longest time-out.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Nanoseconds, at least one, so that a wait of nothing is not taken for the default; at most a year.
pub(crate) fn nanoseconds(duration: Duration) -> i64 {
    duration.min(YEAR).as_nanos().max(1) as i64
}

/// None: the option's value.
pub(crate) fn timeout(duration: Option<Duration>) -> i64 {
    duration.map_or(hvd_sys::HVD_DEFAULT_TIMEOUT, nanoseconds)
}

/// Runs a program's callback; a panic must not unwind into C, and becomes its message.
pub(crate) fn caught<R>(function: impl FnOnce() -> R) -> std::result::Result<R, String> {
    catch_unwind(AssertUnwindSafe(function)).map_err(|panic| format!("panic: {}", message_of(&*panic)))
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "of unknown type"
    }
}
