//! Carries packets between two TUN devices, through a [`Queue`] in each direction, on a thread of its own.

use crate::queue::{Conditions, Counts, Queue};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use tokio_tun::Tun;

/// Largest packet of a TUN device of the usual MTU, with room to see that there is no larger one.
const PACKET_BYTES_MAX: usize = 2048;

#[derive(Debug)]
struct Line {
    queue: Mutex<Queue>,
    changed: Notify,
}

/// Ends, and closes its devices, when dropped.
#[derive(Debug)]
pub(crate) struct Forwarder {
    /// Up and down.
    lines: [Arc<Line>; 2],
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Forwarder {
    /// Makes both devices (in this process's namespace; their owners move them) and forwards between them.
    pub(crate) fn start(devices: [&str; 2], conditions: [Conditions; 2]) -> io::Result<Forwarder> {
        let lines = conditions.map(|conditions| {
            Arc::new(Line { queue: Mutex::new(Queue::new(conditions)), changed: Notify::new() })
        });
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let [client, server] = {
            let _entered = runtime.enter();
            [device(devices[0])?, device(devices[1])?]
        };
        let [up, down] = lines.clone();
        let thread = std::thread::Builder::new().name("test-link".to_owned()).spawn(move || {
            runtime.block_on(async {
                let start = Instant::now();
                tokio::select! {
                    _ = stopped => {}
                    () = carry(&client, &server, &up, start) => {}
                    () = carry(&server, &client, &down, start) => {}
                }
            });
        })?;
        Ok(Forwarder { lines, stop: Some(stop), thread: Some(thread) })
    }

    pub(crate) fn change(&self, conditions: [Conditions; 2]) {
        for (line, conditions) in self.lines.iter().zip(conditions) {
            line.queue.lock().change(conditions);
        }
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        for line in &self.lines {
            line.queue.lock().cut(is_cut);
            line.changed.notify_one();
        }
    }

    pub(crate) fn counts(&self) -> [Counts; 2] {
        self.lines.each_ref().map(|line| line.queue.lock().counts)
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn device(name: &str) -> io::Result<Tun> {
    let made = Tun::builder().name(name).close_on_exec().build();
    let mut devices = made.map_err(|error| {
        io::Error::other(format!("making the network device {name}: {error}; it takes root and /dev/net/tun"))
    })?;
    devices.pop().ok_or_else(|| io::Error::other(format!("no network device {name} was made")))
}

/// Ends when a device is gone.
async fn carry(from: &Tun, to: &Tun, line: &Line, start: Instant) {
    let mut packet = [0; PACKET_BYTES_MAX];
    loop {
        let next = line.queue.lock().next_due();
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until((start + at).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            read = from.recv(&mut packet) => match read {
                Ok(bytes) => line.queue.lock().offer(start.elapsed(), &packet[..bytes]),
                // A device that is not up yet has nothing to read.
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            },
            () = due => {}
            () = line.changed.notified() => {}
        }
        loop {
            let Some(packet) = line.queue.lock().due(start.elapsed()) else { break };
            // A device that is down or full loses packets, as networks do.
            let _ = to.try_send(&packet);
        }
    }
}
