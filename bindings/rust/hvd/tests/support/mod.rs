//! Real jobs: hvdrun (or a driver) starts this test program again, once a worker, to run its test `worker`.
#![allow(dead_code)] // each test program uses its part

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// What makes this program run only its test `worker`, with its output.
pub const WORKER: &[&str] = &["--exact", "worker", "--nocapture", "--test-threads=1"];

/// Short times where a busy machine does not look like a fault.
pub const OPTIONS: &[(&str, &str)] = &[
    ("discovery_interval", "0.05"),
    ("restart_delay_min", "0.05"),
    ("restart_delay_max", "1"),
    ("join_settle", "1"),
    ("elastic_timeout", "40"),
    ("blocklist_after", "100"),
    ("stop_grace", "2"),
];

/// A directory of a test's own, removed at the end.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("hvd-rust-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The role that this process has in a job, if it is a worker.
pub fn role() -> Option<String> {
    std::env::var("HVD_TEST_ROLE").ok()
}

pub fn test_directory() -> PathBuf {
    PathBuf::from(std::env::var_os("HVD_TEST_DIR").expect("HVD_TEST_DIR"))
}

/// A worker's value by name: `step` of "step 5 size 2".
pub fn value(line: &str, name: &str) -> Option<i64> {
    let mut words = line.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()?.parse().ok()
}

/// A job under hvdrun.
pub struct Job {
    directory: Directory,
    process: Child,
    lines: Receiver<String>,
    pub seen: Vec<String>,
}

impl Job {
    pub fn start(role: &str, hosts: &str, flags: &[&str]) -> Job {
        let directory = Directory::new(role);
        let script = directory.0.join("discover.sh");
        set_hosts(&directory.0, hosts);
        std::fs::write(&script, format!("#!/bin/sh\nexec cat '{}/hosts'\n", directory.0.display())).unwrap();
        let made = Command::new("chmod").arg("+x").arg(&script).status().unwrap();
        assert!(made.success());
        let made = Command::new("mkfifo").arg(directory.0.join("fifo")).status().unwrap();
        assert!(made.success());
        let library = Path::new(env!("HVD_LIB_DIR_FOUND"));
        let hvdrun = std::env::var_os("HVD_TEST_BIN")
            .map_or_else(|| library.join("../bin"), PathBuf::from)
            .join("hvdrun");
        let mut command = Command::new(&hvdrun);
        command.args(flags).arg("--local-hosts").arg("--host-discovery-script").arg(&script);
        for (key, value) in OPTIONS {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        command.arg("--").arg(std::env::current_exe().unwrap()).args(WORKER);
        command.env("RUST_BACKTRACE", "0").env("HVD_TEST_ROLE", role).env("HVD_TEST_DIR", &directory.0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().unwrap_or_else(|e| panic!("{}: {e}", hvdrun.display()));
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Job { directory, process, lines, seen: Vec::new() }
    }

    pub fn set_hosts(&self, hosts: &str) {
        set_hosts(&self.directory.0, hosts);
    }

    /// Lets everybody through who looks for this file.
    pub fn open(&self, gate: &str) {
        std::fs::write(self.directory.0.join(gate), "").unwrap();
    }

    /// The next line that fits, of those not seen before.
    pub fn wait(&mut self, what: &str, fits: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if fits(&line) {
                        return line;
                    }
                }
                Err(why) => {
                    let from = self.seen.len().saturating_sub(60);
                    panic!("{why} while waiting for {what}\n{}", self.seen[from..].join("\n"));
                }
            }
        }
    }

    /// Waits for the job's end, which must be a success; the rest of its lines are in `seen`.
    pub fn finish(&mut self) {
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(60)) {
            self.seen.push(line);
        }
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}\n{}", self.seen.join("\n"));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            // hvdrun ends its workers when it is asked to end.
            let _ = Command::new("kill").arg(self.process.id().to_string()).status();
            let _ = self.process.wait();
        }
    }
}

fn set_hosts(directory: &Path, hosts: &str) {
    let new = directory.join("hosts.new");
    std::fs::write(&new, format!("{hosts}\n")).unwrap();
    std::fs::rename(new, directory.join("hosts")).unwrap();
}

pub fn kill(pid: i64) {
    let status = Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
    assert!(status.success());
}
