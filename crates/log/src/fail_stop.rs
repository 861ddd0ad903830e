//! A device that fails once fails for good.

use crate::device::Device;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// After the first failed write or flush of the device under it, every later write and flush fails too. After
/// such a failure it is unknown what is durable, and systems report it only once: the next flush would seem
/// to succeed. Reads still work.
pub struct FailStop {
    device: Arc<dyn Device>,
    failed: Mutex<Option<String>>,
    /// Serialises flushes, so that none begins between another's failure and the moment that is recorded.
    flushing: Mutex<()>,
}

impl FailStop {
    /// Puts one over `device`.
    pub fn over(device: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(FailStop { device, failed: Mutex::default(), flushing: Mutex::default() })
    }

    fn checked(&self, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if let Some(failed) = &*self.failed.lock() {
            return Err(io::Error::other(format!("an earlier write or flush failed ({failed})")));
        }
        let done = act();
        if let Err(error) = &done {
            self.failed.lock().get_or_insert_with(|| error.to_string());
        }
        done
    }
}

impl Device for FailStop {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.checked(|| self.device.write_at(offset, bytes))
    }

    fn flush(&self) -> io::Result<()> {
        let _one = self.flushing.lock();
        self.checked(|| self.device.flush())
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.checked(|| self.device.discard(offset, length))
    }

    fn drop_cache(&self, offset: u64, length: u64) {
        self.device.drop_cache(offset, length);
    }

    fn begin_write_out(&self, offset: u64, length: u64) {
        self.device.begin_write_out(offset, length);
    }

    fn describe(&self) -> String {
        self.device.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated_device::{Devices, Failure};

    /// Proves: after one failed write or flush none succeeds, even if the medium works again; reads do.
    #[test]
    fn failures_are_remembered() {
        for failure in [Failure::Writes(0), Failure::Flushes(0)] {
            let devices = Devices::new();
            devices.add("disk", 8192);
            let device = FailStop::over(devices.device(0));
            device.write_at(0, &[1; 512]).expect("written");
            device.flush().expect("flushed");
            devices.fail(failure);
            let _ = device.write_at(512, &[2; 512]);
            let _ = device.flush();
            devices.heal();
            assert!(device.write_at(0, &[3; 512]).is_err());
            assert!(device.flush().expect_err("for good").to_string().contains("an earlier write or flush"));
            let mut there = [0; 512];
            device.read_at(0, &mut there).expect("read");
            assert_eq!(there, [1; 512]);
        }
    }
}
