//! A worker that is alone, or two in one process: every collective, operations under way, states, and bad
//! input, which is an error and never a crash.
mod collectives;
mod operations;
mod states;

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use hvd::{
    elastic, Batch, Bf16, Bool, Call, Context, Error, Fields, Kinds, Object, Options, ProcessSet, Sampler,
    SamplerOptions, SetRule, State, Status, Variables, View, ViewMut, F16,
};

fn alone() -> Context {
    Context::new().expect("a worker that is alone")
}

/// Two workers of one job, both in this process.
fn pair() -> (Context, Context) {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let join = move |rank: i32| {
        let mut options = Options::new().unwrap();
        options
            .set("rank", rank)
            .unwrap()
            .set("size", 2)
            .unwrap()
            .set("rendezvous", address.as_str())
            .unwrap();
        options
            .set("secret", "s".repeat(32))
            .unwrap()
            .set("operation_timeout", Duration::from_secs(30))
            .unwrap();
        Context::with_options(&options).expect("a worker of two")
    };
    std::thread::scope(|threads| {
        let second = threads.spawn(|| join(1));
        (join(0), second.join().unwrap())
    })
}

#[track_caller]
fn expect<T: std::fmt::Debug>(result: hvd::Result<T>, status: Status, names: &[&str]) -> Error {
    let error = result.expect_err("must fail");
    assert_eq!(error.status(), status, "{error}");
    for name in names {
        assert!(error.message().contains(name), "{error} does not name {name:?}");
    }
    error
}
