//! Which process made a handle. A handler of fork's counts, as asking for the process takes a system call.
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;

use crate::error::{Error, Result};

static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> i32;
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that made a handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    forks: u32,
    id: u32,
}

impl Process {
    pub(crate) fn current() -> Process {
        static ONCE: Once = Once::new();
        // SAFETY: the handler only counts, and stays as long as the process. A failure is out of memory: then children
        // go unnoticed, as do those of a bare system call.
        ONCE.call_once(|| unsafe {
            pthread_atfork(None, None, Some(in_child));
        });
        Process { forks: FORKS.load(Ordering::Relaxed), id: std::process::id() }
    }

    pub(crate) fn is_this(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks
    }

    /// An error in a forked child: none of the library's threads is there.
    pub(crate) fn check(self) -> Result<()> {
        if self.is_this() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "made by process {}, called in process {}: after a fork it is the parent's alone",
            self.id,
            std::process::id()
        )))
    }
}
