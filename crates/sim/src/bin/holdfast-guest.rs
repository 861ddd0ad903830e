//! What the tests in a virtual machine (`scripts/test-guest`) need beside other people's programs: a protected volume
//! under a key that everybody knows, exported in every way, and a player of what dm-log-writes recorded below one.

use anyhow::{Context, Result, bail, ensure};
use holdfast_export::{Address, Export, Limits, Server};
use holdfast_fuse::{Options, UnmountMode};
use holdfast_log::device::{Device, FileDevice};
use holdfast_sim::log_writes::{Event, Record};
use holdfast_volume::{Volume, VolumeKey};
use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const HELP: &str = "holdfast-guest prepare DISK LOG
holdfast-guest serve DISK LOG nbd ADDRESS | ublk | file DIRECTORY    says what it serves; ends with its input
holdfast-guest replay RECORD DISK-BYTES LOG-BYTES CHECK    states of a record; CHECK IMAGE N must find what mark N promised";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["prepare", disk, log] => prepare(device(disk)?, device(log)?),
        ["serve", disk, log, ref way @ ..] => serve(device(disk)?, device(log)?, way),
        ["replay", record, disk, log, check] => replay(record, disk.parse()?, log.parse()?, check),
        _ => bail!(HELP),
    }
}

fn key() -> VolumeKey {
    VolumeKey::new(&[6; 32], b"a guest's volume")
}

fn device(path: &str) -> Result<Arc<dyn Device>> {
    Ok(Arc::new(FileDevice::open(Path::new(path)).with_context(|| path.to_owned())?))
}

fn salt() -> Result<[u8; 16]> {
    let mut salt = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut salt)?;
    Ok(salt)
}

fn prepare(disk: Arc<dyn Device>, log: Arc<dyn Device>) -> Result<()> {
    Volume::format(&*disk, &*log, &key(), None)?;
    ensure!(Volume::adopt(disk, log, &key(), salt()?, None, &|_, _| true)?, "not all was taken over");
    Ok(())
}

fn serve(disk: Arc<dyn Device>, log: Arc<dyn Device>, way: &[&str]) -> Result<()> {
    let (volume, report) = Volume::open(disk, log, &key(), Default::default(), None, salt()?)?;
    ensure!(report.refused.is_empty(), "blocks are refused after a crash: {report:?}");
    volume.start()?;
    let volume = Arc::new(volume);
    let say = |words: String| -> Result<()> {
        println!("{words}");
        Ok(io::stdout().flush()?)
    };
    let until_told = || io::stdin().read_to_end(&mut Vec::new());
    match *way {
        ["nbd", address] => {
            let address: Address = address.parse()?;
            let (name, description) = ("guest".into(), "a guest's volume".into());
            let export = Export { name, description, disk: volume.clone(), is_read_only: false };
            let server = Server::start(&address, export, Limits::default())?;
            say(server.address().uri())?;
            until_told()?;
        }
        ["ublk"] => {
            let device = holdfast_ublk::Device::start(volume.clone(), false)?;
            say(device.path().display().to_string())?;
            until_told()?;
            ensure!(!device.is_busy(), "it is in use");
        }
        ["file", directory] => {
            let options = Options {
                source: "holdfast".into(),
                allow_other: false,
                read_only: false,
                no_exec: true,
                local_locks: false,
            };
            let session =
                holdfast_fuse::mount_disk(volume.clone(), "disk", Path::new(directory), &options, || ())?;
            say(format!("{directory}/disk"))?;
            until_told()?;
            while session.unmount(UnmountMode::Gently).is_err() {
                thread::sleep(Duration::from_millis(50));
            }
            session.wait();
        }
        _ => bail!(HELP),
    }
    volume.close()?;
    Ok(())
}

/// A part of what was recorded, in memory.
struct Part(Mutex<Vec<u8>>);

impl Device for Part {
    fn size_bytes(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock();
        let found = bytes.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut all = self.0.lock();
        let place = all.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
        place.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn describe(&self) -> String {
        "a state of the record".into()
    }
}

/// Opens a state as after a crash, reads every block, and closes it. The plain disk.
fn recover(state: &[u8], disk_bytes: usize) -> Result<Vec<u8>> {
    let (disk, log) = state.split_at_checked(disk_bytes).context("the disk is larger than the record's")?;
    let disk = Arc::new(Part(Mutex::new(disk.to_vec())));
    let log = Arc::new(Part(Mutex::new(log.to_vec())));
    let (volume, report) = Volume::open(disk.clone(), log, &key(), Default::default(), None, salt()?)?;
    ensure!(report.refused.is_empty(), "blocks are refused: {:?}", report.refused);
    let bad = volume.scrub(0..disk_bytes as u64 / 4096)?;
    ensure!(bad.is_empty(), "blocks {bad:?} are bad");
    volume.close()?;
    drop(volume);
    let bytes = disk.0.lock().clone();
    Ok(bytes)
}

/// Writes that no flush has followed yet.
type Epoch = Vec<(u64, Vec<u8>)>;

fn apply(state: &mut [u8], offset: u64, bytes: &[u8]) -> Result<()> {
    let place = state.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
    place.context("the record is of something larger")?.copy_from_slice(bytes);
    Ok(())
}

fn replay(record: &str, disk_bytes: usize, log_bytes: usize, check: &str) -> Result<()> {
    let file = File::open(record).with_context(|| record.to_owned())?;
    let mut state = vec![0; disk_bytes + log_bytes];
    let mut epoch = Epoch::new();
    let (mut protected, mut flushes, mut states, mut marks) = (false, 0u64, 0u64, 0u64);
    let mut random = holdfast_sim::random::Random::new(7);
    for event in Record::open(BufReader::with_capacity(1 << 20, file))? {
        match event? {
            Event::Write { offset, bytes, is_flush, is_durable } => {
                if is_flush {
                    if protected {
                        flushes += 1;
                        // A crash before this flush may have lost any of the writes since the last one.
                        let mut crashed = state.clone();
                        for (offset, bytes) in &epoch {
                            if random.below(2) == 0 {
                                apply(&mut crashed, *offset, bytes)?;
                            }
                        }
                        recover(&crashed, disk_bytes).with_context(|| format!("before flush {flushes}"))?;
                        states += 1;
                    }
                    for (offset, bytes) in epoch.drain(..) {
                        apply(&mut state, offset, &bytes)?;
                    }
                    if protected {
                        recover(&state, disk_bytes).with_context(|| format!("after flush {flushes}"))?;
                        states += 1;
                    }
                }
                if is_durable {
                    apply(&mut state, offset, &bytes)?;
                } else if !bytes.is_empty() {
                    epoch.push((offset, bytes));
                }
            }
            // It may be anything, as it was too.
            Event::Discard { .. } => {}
            Event::Mark(text) if text == "protected" => protected = true,
            Event::Mark(text) => {
                marks += 1;
                // What was promised before the mark holds whatever is lost of what came since the last flush.
                let image = recover(&state, disk_bytes).with_context(|| format!("mark {text}"))?;
                let path = std::env::temp_dir().join("state");
                std::fs::write(&path, image)?;
                let status = Command::new(check).arg(&path).arg(&text).status()?;
                ensure!(status.success(), "mark {text}: what was promised is not there");
            }
        }
    }
    ensure!(protected && flushes > 20 && marks > 3, "the record is too short to prove anything");
    println!("{states} states of {flushes} flushes and {marks} marks recovered");
    Ok(())
}
