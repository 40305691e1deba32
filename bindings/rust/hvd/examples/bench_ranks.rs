//! One rank of the benchmark of languages (bindings/tests/bench.py): the protocol of tests/bench/ranks.h,
//! with allreduce through this crate. Its `unsafe` is the barrier's, which all languages' ranks have in
//! shared memory.
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hvd::Context;

type Failure = Box<dyn std::error::Error>;

extern "C" {
    fn mmap(at: *mut u8, length: usize, protection: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
    fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
    fn sched_yield() -> i32;
}

fn now_ns() -> i64 {
    let mut time = [0; 2];
    // SAFETY: CLOCK_MONOTONIC into a timespec of 64-bit numbers.
    unsafe { clock_gettime(1, &mut time) };
    time[0] * 1_000_000_000 + time[1]
}

struct Hall {
    arrived: &'static AtomicU32,
    round: &'static AtomicU32,
    size: u32,
}

impl Hall {
    fn open(path: &str, size: u32) -> Result<Hall, Failure> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        // SAFETY: a new shared mapping of a file of that size, never unmapped.
        let at = unsafe { mmap(std::ptr::null_mut(), 4096, 3, 1, file.as_raw_fd(), 0) };
        if at as isize == -1 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: within the mapping, aligned; all ranks use them as atomics.
        let counter = |offset| unsafe { &*at.add(offset).cast::<AtomicU32>() };
        Ok(Hall { arrived: counter(0), round: counter(64), size })
    }

    /// Yields while it waits: with more ranks than cores nobody may be kept from arriving.
    fn meet(&self) -> Result<(), Failure> {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.size {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.fetch_add(1, Ordering::Release);
            return Ok(());
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.round.load(Ordering::Acquire) == round {
            // SAFETY: takes nothing.
            unsafe { sched_yield() };
            if Instant::now() > deadline {
                return Err("the other ranks did not come to the barrier".into());
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), Failure> {
    let directory = std::env::var("HVD_BENCH_DIRECTORY")?;
    let context = Context::new()?;
    let (rank, size) = (context.rank()?, context.size()?);
    let hall = Hall::open(&format!("{directory}/barrier"), size as u32)?;
    let commands = BufReader::new(File::open(format!("{directory}/commands.{rank}"))?);
    let mut replies = OpenOptions::new().write(true).open(format!("{directory}/replies.{rank}"))?;
    replies.write_all(b"ready\n")?;
    let mut data: Vec<f32> = Vec::new();
    for line in commands.lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["quit"] => break,
            ["release"] => {
                data = Vec::new();
                replies.write_all(b"ok\n")?;
            }
            ["run", "allreduce", numbers @ ..] => {
                let numbers: Result<Vec<usize>, _> = numbers.iter().map(|n| n.parse()).collect();
                let [bytes, samples, batch, warm, check] = numbers?[..] else { return Err(line.into()) };
                data.resize(bytes / 4, 1.0);
                if check != 0 {
                    let value = |i: usize, rank: i32| (i % 13) as f32 + rank as f32 * 3.0;
                    data.iter_mut().enumerate().for_each(|(i, x)| *x = value(i, rank));
                    context.allreduce_in_place("gradients", &mut data)?;
                    let total = |i| (0..size).map(|r| value(i, r)).sum::<f32>();
                    assert!(data.iter().enumerate().all(|(i, x)| *x == total(i)), "a wrong sum");
                }
                data.fill(0.0);
                for _ in 0..warm {
                    context.allreduce_in_place("gradients", &mut data)?;
                }
                let mut reply = String::from("ok");
                for _ in 0..samples {
                    hall.meet()?;
                    let began = now_ns();
                    for _ in 0..batch {
                        context.allreduce_in_place("gradients", &mut data)?;
                    }
                    reply += &format!(" {began} {}", now_ns());
                }
                replies.write_all((reply + "\n").as_bytes())?;
            }
            _ => return Err(format!("unknown command {line}").into()),
        }
    }
    Ok(context.shutdown(None)?)
}
