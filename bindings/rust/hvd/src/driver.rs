//! The elastic driver in one's own process: hosts by one's own discovery, workers by one's own launcher.
use std::collections::HashMap;
use std::error::Error as StdError;
use std::ffi::{c_char, c_void, CString};
use std::ptr;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use hvd_sys as sys;
use sys::Sized0;

use crate::error::{check, Result};
use crate::options::{drop_box, Options};
use crate::raw::{self, c_string, text_of};

/// A driver: discovers hosts, starts one worker per slot, gives them ranks generation by generation, notices
/// those that are lost, and says how the job ended. Dropping it stops the job.
#[derive(Debug)]
pub struct Driver {
    ptr: *mut sys::hvd_driver,
}

/// Reports ends of workers, from any thread, also when the driver is gone: see [`Driver::exits`].
#[derive(Clone, Debug)]
pub struct Exits {
    ptr: *mut sys::hvd_driver,
}

// SAFETY: "Functions may be called from any thread".
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}
// SAFETY: as above.
unsafe impl Send for Exits {}
// SAFETY: as above.
unsafe impl Sync for Exits {}

/// What discovery and launching may fail with: anything.
pub type Failed = Box<dyn StdError + Send + Sync>;

/// One host and its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Workers that it can take.
    pub slots: i32,
}

/// A worker to start.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Its identity.
    pub worker: u64,
    /// Where.
    pub host: String,
    /// Which slot of the host.
    pub slot: i32,
    /// Must reach it: the driver's address, the worker's identity, the job's secret.
    pub environment: HashMap<String, String>,
}

/// Starts workers instead of the local launcher. Called from one thread of the library.
pub trait Launcher: Send {
    /// Starts a worker. An error counts as a failure of the slot.
    fn start(&mut self, launch: &Launch) -> std::result::Result<(), Failed>;
    /// Asks for its end: politely, or at once. Its end is reported by [`Exits::worker_exited`].
    fn stop(&mut self, worker: u64, force: bool);
}

/// A line that a worker of the local launcher printed.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    /// None before the first generation.
    pub rank: Option<i32>,
    /// Of the worker.
    pub host: &'a str,
    /// Of the worker.
    pub slot: i32,
    /// Else it is from the standard output.
    pub is_stderr: bool,
    /// Without a newline.
    pub text: &'a str,
}

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Not started.
    New,
    /// A generation is being formed.
    Forming,
    /// Workers train.
    Running,
    /// Workers are being ended.
    Ending,
    /// Ended in success.
    Succeeded,
    /// Ended in failure.
    Failed,
}

/// How a job is.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct JobStatus {
    pub phase: Phase,
    /// Members of the current generation.
    pub size: i32,
    /// Alive, members or not.
    pub workers: i32,
    /// Usable slots discovered now.
    pub slots: i32,
    /// Generations formed after the first.
    pub resets: i32,
    pub generation: u64,
    pub membership_epoch: u64,
    pub hosts_blocked: i32,
    /// Listening port, 0 before the start.
    pub port: i32,
    /// How the job ended, or what it waits for.
    pub sentence: String,
    /// Newest report of an operation that some ranks do not come to.
    pub stall: String,
    /// Failed, and it may do better at another time.
    pub try_again: bool,
    /// Operations that wait for ranks for longer than stall_warning.
    pub stalled: i32,
    /// Time in training that commits have kept, over wall time: 0 to 1; -1: not known.
    pub goodput: f64,
    /// Of the fastest member, over the last ten seconds.
    pub commits_per_second: f64,
}

/// How [`Driver::describe`] tells of a job (docs/observability.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// For people: tables.
    Text,
    /// For programs.
    Json,
    /// For Prometheus and its like.
    OpenMetrics,
    /// For people: one line.
    Line,
}

/// Behind a mutex: a call that outlasts discovery_timeout may overlap with the next one.
type Discover = Mutex<Box<dyn FnMut() -> std::result::Result<Vec<Host>, Failed> + Send>>;
type Output = Box<dyn FnMut(&Line<'_>) + Send>;

unsafe extern "C" fn discover(userdata: *mut c_void, add: sys::hvd_add_host_fn, sink: *mut c_void) -> i32 {
    // SAFETY: userdata is the box given with this function.
    let discover = unsafe { &*userdata.cast::<Discover>() };
    let mut discover = match discover.try_lock() {
        Ok(discover) => discover,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return 1, // the last call is still at it
    };
    let (Ok(Ok(hosts)), Some(add)) = (raw::caught(&mut *discover), add) else { return 1 };
    for host in hosts {
        let Ok(name) = CString::new(host.name) else { return 1 };
        // SAFETY: the library's function with the library's sink, within the call.
        if unsafe { add(sink, name.as_ptr(), host.slots) } != 0 {
            return 1;
        }
    }
    0
}

unsafe extern "C" fn start_worker(userdata: *mut c_void, launch: *const sys::hvd_launch) -> i32 {
    // SAFETY: userdata is the box given with this function, called from one thread; launch is valid during
    // the call.
    let (launcher, launch) = unsafe { (&mut *userdata.cast::<Box<dyn Launcher>>(), &*launch) };
    let mut environment = HashMap::new();
    let mut entry = launch.environment;
    // SAFETY: an array of strings that ends with NULL.
    while let Some(text) = unsafe { entry.as_ref() }.filter(|text| !text.is_null()) {
        // SAFETY: as above.
        let text = unsafe { text_of(*text) };
        if let Some((name, value)) = text.split_once('=') {
            environment.insert(name.to_string(), value.to_string());
        }
        // SAFETY: as above: there is a next entry, at least the NULL.
        entry = unsafe { entry.add(1) };
    }
    // SAFETY: as above.
    let host = unsafe { text_of(launch.host) };
    let launch = Launch { worker: launch.worker, host, slot: launch.slot, environment };
    i32::from(!matches!(raw::caught(|| launcher.start(&launch)), Ok(Ok(()))))
}

unsafe extern "C" fn stop_worker(userdata: *mut c_void, worker: u64, force: i32) {
    // SAFETY: as above.
    let launcher = unsafe { &mut *userdata.cast::<Box<dyn Launcher>>() };
    let _ = raw::caught(|| launcher.stop(worker, force != 0));
}

unsafe extern "C" fn on_line(
    userdata: *mut c_void,
    rank: i32,
    host: *const c_char,
    slot: i32,
    is_stderr: i32,
    line: *const c_char,
) {
    // SAFETY: as above; the strings are valid during the call.
    let (output, host, text) = unsafe { (&mut *userdata.cast::<Output>(), text_of(host), text_of(line)) };
    let line =
        Line { rank: (rank >= 0).then_some(rank), host: &host, slot, is_stderr: is_stderr != 0, text: &text };
    let _ = raw::caught(|| output(&line));
}

/// NULL-terminated, for a C array of strings.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

impl Driver {
    /// A driver with options np, min_np, max_np, hosts, discovery_script ... ; it does nothing before
    /// [`Driver::start`].
    pub fn new(options: &Options) -> Result<Driver> {
        let mut ptr = ptr::null_mut();
        // SAFETY: options live through the call; ptr is a place for the result.
        check(|e| unsafe { sys::hvd_driver_create(options.ptr, &mut ptr, e) })?;
        Ok(Driver { ptr })
    }

    fn call(&self, function: impl FnOnce(*mut sys::hvd_driver, *mut sys::hvd_error) -> i32) -> Result<()> {
        check(|e| function(self.ptr, e))
    }

    /// The program that the local launcher starts for each worker, with variables added to this process's
    /// environment.
    pub fn command(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
        let arguments: Result<Vec<_>> = arguments.iter().map(|a| c_string("argument", a)).collect();
        let environment: Result<Vec<_>> =
            environment.iter().map(|(k, v)| c_string("environment", &format!("{k}={v}"))).collect();
        let (arguments, environment) = (arguments?, environment?);
        let (argv, envp) = (pointers(&arguments), pointers(&environment));
        // SAFETY: arrays of strings that end with NULL, copied by the call.
        self.call(|d, e| unsafe { sys::hvd_driver_set_command(d, argv.as_ptr(), envp.as_ptr(), e) })
    }

    /// Hosts by this function instead of options `hosts` or `discovery_script`. Called every
    /// `discovery_interval` from a thread of its own. An error (or a panic) is fatal at the first call, later
    /// it is tried again.
    pub fn discovery(
        &self,
        function: impl FnMut() -> std::result::Result<Vec<Host>, Failed> + Send + 'static,
    ) -> Result<()> {
        let userdata = Box::into_raw(Box::new(Discover::new(Box::new(function)))).cast();
        let destroy: unsafe extern "C" fn(*mut c_void) = drop_box::<Discover>;
        // SAFETY: destroy runs exactly once, also on failure; if the call is not made, here.
        self.give(userdata, destroy, |d, e| unsafe {
            sys::hvd_driver_set_discovery(d, Some(discover), userdata, Some(destroy), e)
        })
    }

    /// Starts and stops workers by this launcher instead of the local one.
    pub fn launcher(&self, launcher: impl Launcher + 'static) -> Result<()> {
        let userdata = Box::into_raw(Box::new(Box::new(launcher) as Box<dyn Launcher>)).cast();
        let destroy: unsafe extern "C" fn(*mut c_void) = drop_box::<Box<dyn Launcher>>;
        // SAFETY: as above.
        self.give(userdata, destroy, |d, e| unsafe {
            sys::hvd_driver_set_launcher(d, Some(start_worker), Some(stop_worker), userdata, Some(destroy), e)
        })
    }

    /// Takes the lines that workers of the local launcher print. Called from one thread.
    pub fn output(&self, output: impl FnMut(&Line<'_>) + Send + 'static) -> Result<()> {
        let userdata = Box::into_raw(Box::new(Box::new(output) as Output)).cast();
        let destroy: unsafe extern "C" fn(*mut c_void) = drop_box::<Output>;
        // SAFETY: as above.
        self.give(userdata, destroy, |d, e| unsafe {
            sys::hvd_driver_set_output(d, Some(on_line), userdata, Some(destroy), e)
        })
    }

    /// Makes a call that takes userdata over.
    fn give(
        &self,
        userdata: *mut c_void,
        destroy: unsafe extern "C" fn(*mut c_void),
        function: impl FnOnce(*mut sys::hvd_driver, *mut sys::hvd_error) -> i32,
    ) -> Result<()> {
        let mut given = false;
        let result = self.call(|d, e| {
            given = true;
            function(d, e)
        });
        if !given {
            // SAFETY: nobody else has it.
            unsafe { destroy(userdata) };
        }
        result
    }

    /// Starts listening, discovery and workers, and returns.
    pub fn start(&self) -> Result<()> {
        // SAFETY: the driver lives through the call. Likewise below.
        self.call(|d, e| unsafe { sys::hvd_driver_start(d, e) })
    }

    /// Waits until the job has ended: Ok if it succeeded, [`JobFailed`](crate::Status::JobFailed) with the
    /// sentence that says why, [`Timeout`](crate::Status::Timeout) if it goes on.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        // SAFETY: as above.
        self.call(|d, e| unsafe { sys::hvd_driver_wait(d, raw::nanoseconds(timeout), e) })
    }

    /// Ends the job and returns at once. Called again, it kills what is left.
    pub fn stop(&self, reason: &str) -> Result<()> {
        let reason = c_string("reason", reason)?;
        // SAFETY: as above.
        self.call(|d, e| unsafe { sys::hvd_driver_stop(d, reason.as_ptr(), e) })
    }

    /// How the job is.
    pub fn status(&self) -> Result<JobStatus> {
        let mut s = sys::hvd_driver_status_info::sized();
        // SAFETY: as above.
        self.call(|d, e| unsafe { sys::hvd_driver_get_status(d, &mut s, e) })?;
        let phase = match s.phase {
            sys::HVD_PHASE_NEW => Phase::New,
            sys::HVD_PHASE_FORMING => Phase::Forming,
            sys::HVD_PHASE_RUNNING => Phase::Running,
            sys::HVD_PHASE_ENDING => Phase::Ending,
            sys::HVD_PHASE_SUCCEEDED => Phase::Succeeded,
            _ => Phase::Failed,
        };
        Ok(JobStatus {
            phase,
            size: s.size,
            workers: s.workers,
            slots: s.slots,
            resets: s.resets,
            generation: s.generation,
            membership_epoch: s.membership_epoch,
            hosts_blocked: s.hosts_blocked,
            port: s.port,
            sentence: raw::field(&s.sentence),
            stall: raw::field(&s.stall),
            try_again: s.try_again != 0,
            stalled: s.stalled,
            goodput: s.goodput,
            commits_per_second: s.commits_per_second,
        })
    }

    /// All that is known of the job: hosts, workers, generations and their recoveries, goodput. No secrets
    /// are in it.
    pub fn describe(&self, format: Format) -> Result<String> {
        let format = match format {
            Format::Text => sys::HVD_DRIVER_FORMAT_TEXT,
            Format::Json => sys::HVD_DRIVER_FORMAT_JSON,
            Format::OpenMetrics => sys::HVD_DRIVER_FORMAT_OPENMETRICS,
            Format::Line => sys::HVD_DRIVER_FORMAT_LINE,
        };
        let mut text = ptr::null_mut();
        // SAFETY: as above; text is a place for the result.
        self.call(|d, e| unsafe { sys::hvd_driver_describe(d, format, &mut text, e) })?;
        Ok(owned(text))
    }

    /// Has a host's workers leave at their next commit, at most within this time (None: option
    /// leave_timeout), and gives it no others.
    pub fn drain(&self, host: &str, timeout: Option<Duration>, reason: &str) -> Result<()> {
        let (host, reason) = (c_string("host", host)?, c_string("reason", reason)?);
        let timeout = raw::timeout(timeout);
        // SAFETY: as above.
        self.call(|d, e| unsafe { sys::hvd_driver_drain(d, host.as_ptr(), timeout, reason.as_ptr(), e) })
    }

    /// Lets a drained host be used again.
    pub fn undrain(&self, host: &str) -> Result<()> {
        let host = c_string("host", host)?;
        // SAFETY: as above.
        self.call(|d, e| unsafe { sys::hvd_driver_undrain(d, host.as_ptr(), e) })
    }

    /// Sets the most workers from now on, from min_np to max_np.
    pub fn scale(&self, size: i32) -> Result<()> {
        // SAFETY: as above.
        self.call(|d, e| unsafe { sys::hvd_driver_scale(d, size, e) })
    }

    /// What a launcher of one's own reports ends by.
    pub fn exits(&self) -> Exits {
        Exits { ptr: self.ptr }
    }
}

/// Asks a driver that runs elsewhere as its operator, as `hvdrun ctl` does: options `address_file`, or
/// `driver` and `secret`, name it. Verb "help" lists the verbs. None: 10 seconds.
pub fn command(options: &Options, verb: &str, argument: &str, timeout: Option<Duration>) -> Result<String> {
    let (verb, argument) = (c_string("verb", verb)?, c_string("argument", argument)?);
    let mut text = ptr::null_mut();
    let timeout = raw::timeout(timeout);
    // SAFETY: options and strings live through the call; text is a place for the result.
    check(|e| unsafe {
        sys::hvd_driver_command(options.ptr, verb.as_ptr(), argument.as_ptr(), timeout, &mut text, e)
    })?;
    Ok(owned(text))
}

/// A text that the library gives away.
fn owned(text: *mut c_char) -> String {
    // SAFETY: NUL-terminated, and nobody else's.
    unsafe {
        let result = text_of(text);
        sys::hvd_free(text.cast());
        result
    }
}

impl Exits {
    /// A worker has ended: with 0 to 255, or 256 + the signal's number.
    pub fn worker_exited(&self, worker: u64, exit_status: i32) -> Result<()> {
        // SAFETY: any handle may be given; of a driver that is gone it is refused.
        check(|e| unsafe { sys::hvd_driver_worker_exited(self.ptr, worker, exit_status, e) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: any handle may be given. Calls of other threads end.
        unsafe { sys::hvd_driver_destroy(self.ptr) }
    }
}
