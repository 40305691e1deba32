//! Statuses and errors.
use std::error::Error as StdError;
use std::fmt;

use hvd_sys as sys;

use crate::raw;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// A worker of this generation is gone: restore the last commit and rejoin. Pass it on to
    /// [`crate::elastic::run`].
    PeerLost,
    /// Hosts were added or removed: keep live values and rejoin. Pass it on to [`crate::elastic::run`].
    HostsUpdated,
    /// Ranks disagree about an operation: a bug in the program.
    Mismatch,
    /// Bad argument or bad order of calls: a bug in the program.
    Invalid,
    /// The deadline passed; the message says who and what was waited for.
    Timeout,
    /// The context was shut down or aborted.
    Closed,
    /// This worker has no place in the job any more.
    Removed,
    /// The driver can't be reached or is gone.
    DriverLost,
    /// The driver refused this worker.
    Refused,
    /// A backend, file or system resource can't be had.
    Unavailable,
    /// No backend in use supports this dtype, memory or operation.
    Unsupported,
    /// A callback of the program reported failure.
    CallbackFailed,
    /// The job ended in failure.
    JobFailed,
    /// A defect in the library, or out of memory.
    Internal,
    /// A status that this version of the binding does not know.
    Other(i32),
}

impl Status {
    pub(crate) fn from_raw(status: sys::hvd_status) -> Status {
        match status {
            sys::HVD_PEER_LOST => Status::PeerLost,
            sys::HVD_HOSTS_UPDATED => Status::HostsUpdated,
            sys::HVD_MISMATCH => Status::Mismatch,
            sys::HVD_INVALID => Status::Invalid,
            sys::HVD_TIMEOUT => Status::Timeout,
            sys::HVD_CLOSED => Status::Closed,
            sys::HVD_REMOVED => Status::Removed,
            sys::HVD_DRIVER_LOST => Status::DriverLost,
            sys::HVD_REFUSED => Status::Refused,
            sys::HVD_UNAVAILABLE => Status::Unavailable,
            sys::HVD_UNSUPPORTED => Status::Unsupported,
            sys::HVD_CALLBACK_FAILED => Status::CallbackFailed,
            sys::HVD_JOB_FAILED => Status::JobFailed,
            sys::HVD_INTERNAL => Status::Internal,
            other => Status::Other(other),
        }
    }

    /// The value in `hvd.h`.
    pub fn as_raw(self) -> i32 {
        match self {
            Status::PeerLost => sys::HVD_PEER_LOST,
            Status::HostsUpdated => sys::HVD_HOSTS_UPDATED,
            Status::Mismatch => sys::HVD_MISMATCH,
            Status::Invalid => sys::HVD_INVALID,
            Status::Timeout => sys::HVD_TIMEOUT,
            Status::Closed => sys::HVD_CLOSED,
            Status::Removed => sys::HVD_REMOVED,
            Status::DriverLost => sys::HVD_DRIVER_LOST,
            Status::Refused => sys::HVD_REFUSED,
            Status::Unavailable => sys::HVD_UNAVAILABLE,
            Status::Unsupported => sys::HVD_UNSUPPORTED,
            Status::CallbackFailed => sys::HVD_CALLBACK_FAILED,
            Status::JobFailed => sys::HVD_JOB_FAILED,
            Status::Internal => sys::HVD_INTERNAL,
            Status::Other(other) => other,
        }
    }

    /// "HVD_PEER_LOST" and so on.
    pub fn name(self) -> &'static str {
        // SAFETY: a static string for any value.
        unsafe { raw::static_text(sys::hvd_status_name(self.as_raw())) }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A failure, with what is known about it.
#[derive(Clone, Debug)]
pub struct Error {
    status: Status,
    rank: i32,
    generation: u64,
    vendor_code: i64,
    backend: String,
    message: String,
}

/// `Result` with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of the program's own, for example from a training function.
    pub fn new(status: Status, message: impl Into<String>) -> Error {
        Error {
            status,
            rank: -1,
            generation: 0,
            vendor_code: 0,
            backend: String::new(),
            message: message.into(),
        }
    }
    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(Status::Invalid, message)
    }
    /// What to do next.
    pub fn status(&self) -> Status {
        self.status
    }
    /// What, where, which value, what was expected.
    pub fn message(&self) -> &str {
        &self.message
    }
    /// The rank that is to blame, if it is known.
    pub fn rank(&self) -> Option<i32> {
        (self.rank >= 0).then_some(self.rank)
    }
    /// The generation in which it happened, or 0.
    pub fn generation(&self) -> u64 {
        self.generation
    }
    /// errno, MPI's or NCCL's code, or 0.
    pub fn vendor_code(&self) -> i64 {
        self.vendor_code
    }
    /// The backend that reported it, or "".
    pub fn backend(&self) -> &str {
        &self.backend
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status, self.message)
    }
}

impl StdError for Error {}

/// What [`crate::elastic::run`] must know of a training function's error: whether it came from this library,
/// and as what. Implemented for [`Error`] and for boxed errors, in which it is looked for along the sources.
pub trait Failure: From<Error> {
    /// The status to end or to go on with; None if the error is the program's own.
    fn status(&self) -> Option<Status>;
}

impl Failure for Error {
    fn status(&self) -> Option<Status> {
        Some(self.status)
    }
}

fn status_in(error: &(dyn StdError + 'static)) -> Option<Status> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(ours) = error.downcast_ref::<Error>() {
            return Some(ours.status);
        }
        next = error.source();
    }
    None
}

impl Failure for Box<dyn StdError> {
    fn status(&self) -> Option<Status> {
        status_in(&**self)
    }
}

impl Failure for Box<dyn StdError + Send + Sync> {
    fn status(&self) -> Option<Status> {
        status_in(&**self)
    }
}

/// Calls a function of the C API with a place for its error.
pub(crate) fn check(function: impl FnOnce(*mut sys::hvd_error) -> sys::hvd_status) -> Result<()> {
    let mut error = std::mem::MaybeUninit::<sys::hvd_error>::uninit();
    // SAFETY: writes the first field. The rest is read only when the library has written it.
    unsafe { error.as_mut_ptr().cast::<usize>().write(std::mem::size_of::<sys::hvd_error>()) };
    let status = function(error.as_mut_ptr());
    if status == sys::HVD_OK {
        return Ok(());
    }
    // SAFETY: on failure the library has written all of it.
    Err(from_raw(status, unsafe { &error.assume_init() }))
}

#[cold]
fn from_raw(status: sys::hvd_status, error: &sys::hvd_error) -> Error {
    Error {
        status: Status::from_raw(status),
        rank: error.rank,
        generation: error.generation,
        vendor_code: error.vendor_code,
        backend: raw::field(&error.backend),
        message: raw::field(&error.message),
    }
}
