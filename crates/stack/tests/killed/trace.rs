//! Kills a component's process at a message, right before it is sent or right after, by `ptrace`: so the component is
//! the real one, and unchanged.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread::JoinHandle;

/// The moment relative to sending a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    Before,
    After,
}

/// A traced process. One thread of the test traces it, as the kernel demands.
pub struct Watch {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<bool>,
}

/// Makes a request of `ptrace` about one thread, which is stopped or is to be.
fn trace(request: libc::c_uint, thread: i32, address: usize, data: usize) -> bool {
    // SAFETY: of the requests made here, only GETREGS writes to memory of this process, where `registers` says.
    unsafe { libc::ptrace(request, thread, address, data) == 0 }
}

fn registers(thread: i32) -> Option<libc::user_regs_struct> {
    let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
    let is_read = trace(libc::PTRACE_GETREGS, thread, 0, registers.as_mut_ptr() as usize);
    // SAFETY: the kernel wrote all of it; and zeroes would be a value, too.
    is_read.then(|| unsafe { registers.assume_init() })
}

/// The next of this thread's tracees that stopped or ended, if there is one.
fn next() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: the status is a local integer. Other threads' children are not taken.
    let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG) };
    (thread > 0).then_some((thread, status))
}

impl Watch {
    /// Starts tracing, and kills the process at its message of this number, counted from one; without a number it only
    /// counts.
    pub fn begin(pid: i32, at: Option<(u64, Moment)>) -> Watch {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ready, is_ready) = mpsc::channel();
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
            for task in std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives") {
                let task = task.expect("a thread").file_name();
                let task: i32 = task.to_string_lossy().parse().expect("a number");
                assert!(trace(libc::PTRACE_SEIZE, task, 0, options as usize), "it can be traced by root");
                assert!(trace(libc::PTRACE_INTERRUPT, task, 0, 0));
            }
            ready.send(()).expect("somebody waits");
            watch(pid, at, &stopped, &counted)
        });
        is_ready.recv().expect("it is watched");
        Watch { stop, sent, thread }
    }

    /// Stops tracing. Returns the number of messages that were sent, and whether the process was killed.
    pub fn end(self) -> (u64, bool) {
        self.stop.store(true, SeqCst);
        let is_killed = self.thread.join().expect("it watches");
        (self.sent.load(SeqCst), is_killed)
    }
}

fn watch(pid: i32, at: Option<(u64, Moment)>, stop: &AtomicBool, sent: &AtomicU64) -> bool {
    // Threads that are inside a system call.
    let mut inside: HashMap<i32, bool> = HashMap::new();
    while !stop.load(SeqCst) {
        let Some((thread, status)) = next() else {
            std::thread::sleep(std::time::Duration::from_micros(200));
            continue;
        };
        if !libc::WIFSTOPPED(status) {
            if thread == pid {
                return false;
            }
            continue;
        }
        let signal = libc::WSTOPSIG(status);
        let mut passed_on = 0;
        if signal == libc::SIGTRAP | 0x80 {
            let is_inside = inside.entry(thread).or_default();
            *is_inside = !*is_inside;
            let is_message =
                registers(thread).is_some_and(|found| found.orig_rax == libc::SYS_sendmsg as u64);
            if is_message {
                let number = if *is_inside { sent.fetch_add(1, SeqCst) + 1 } else { sent.load(SeqCst) };
                let when = if *is_inside { Moment::Before } else { Moment::After };
                if at == Some((number, when)) {
                    // SAFETY: a signal to a process that this thread traces, so its number is still its own.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                    return true;
                }
            }
        } else if status >> 16 == 0 && signal != libc::SIGTRAP && signal != libc::SIGSTOP {
            passed_on = signal as usize;
        }
        trace(libc::PTRACE_SYSCALL, thread, 0, passed_on);
    }
    false
}
