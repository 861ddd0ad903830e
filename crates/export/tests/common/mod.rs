//! A disk in memory, and a protected volume with a block that was changed behind its back.

#![allow(dead_code, reason = "each test uses some of it")]

use holdfast_export::{Address, Export, Limits, Server};
use holdfast_log::device::{Device, FileDevice};
use holdfast_testing::PATIENCE;
use holdfast_volume::{Disk, Plan, Volume, VolumeKey};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes in memory.
pub struct InMemory {
    pub bytes: Mutex<Vec<u8>>,
    pub flushes: AtomicUsize,
}

impl InMemory {
    pub fn new(size: usize) -> Arc<InMemory> {
        let mut bytes = vec![0; size];
        (0u64..).zip(bytes.chunks_mut(512)).for_each(|(at, sector)| sector.fill(at as u8));
        Arc::new(InMemory { bytes: Mutex::new(bytes), flushes: AtomicUsize::new(0) })
    }
}

impl Disk for InMemory {
    fn size_bytes(&self) -> u64 {
        self.bytes.lock().expect("unbroken").len() as u64
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        buffer.copy_from_slice(&self.bytes.lock().expect("unbroken")[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.bytes.lock().expect("unbroken")[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        self.bytes.lock().expect("unbroken")[offset as usize..][..length as usize].fill(0);
        Ok(())
    }
}

/// What a test offers.
pub fn export(disk: Arc<dyn Disk>) -> Export {
    Export { name: "a volume".into(), description: "of a test".into(), disk, is_read_only: false }
}

/// Limits whose times no test reaches.
pub fn patient() -> Limits {
    Limits { handshake: 3 * PATIENCE, patience: 3 * PATIENCE, ..Limits::default() }
}

/// A server on a socket in `home`.
pub fn serve(home: &Path, disk: Arc<dyn Disk>) -> Server {
    let address = Address::Unix(home.join("nbd"));
    Server::start(&address, export(disk), patient()).expect("started")
}

/// A volume of `size` bytes, all of them `fill`, in `home`.
pub fn volume(home: &Path, size: u64, fill: u8) -> Arc<Volume> {
    let (image, log) = (home.join("image"), home.join("log"));
    std::fs::write(&image, vec![fill; size as usize]).expect("made");
    File::create(&log).expect("made").set_len(Plan::new(size, None).bytes).expect("sized");
    let device = |path: &Path| -> Arc<dyn Device> { Arc::new(FileDevice::open(path).expect("opened")) };
    let key = VolumeKey::new(&[6; 32], b"exported in test");
    Volume::format(&*device(&image), &*device(&log), &key, None).expect("formatted");
    assert!(Volume::adopt(device(&image), device(&log), &key, [1; 16], None, &|_, _| true).expect("adopted"));
    let (volume, _) =
        Volume::open(device(&image), device(&log), &key, Default::default(), None, [2; 16]).expect("opened");
    volume.start().expect("started");
    Arc::new(volume)
}

/// Changes a byte of the image behind the volume's back.
pub fn spoil(home: &Path, place: u64) {
    let file = File::options().write(true).open(home.join("image")).expect("opened");
    file.write_all_at(b"!", place).expect("spoilt");
}
