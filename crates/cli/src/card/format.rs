//! `holdfast volume format`: a new card.

use super::opened::refused;
use super::sidecar::{RING_BYTES, Sidecar, TABLE_BLOCKS_MAX, table_blocks, usable, write_record};
use super::starting::{PATIENCE, failed, start};
use super::{bus, signed};
use crate::output::{self, bytes_bar};
use crate::volume::args::Format;
use crate::volume::interrupt::Interrupt;
use crate::volume::log::{is_blank, make_log};
use holdfast_daemon::keys;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::volumes::folders::{VolumeFolders, VolumeRecord, absolute};
use holdfast_daemon::volumes::media::Medium;
use holdfast_daemon::volumes::secret::{Secret, hex};
use holdfast_daemon::volumes::{anchor, opening};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_log::device::{Device, JoinedDevice};
use holdfast_stack::{DiskLayout, DiskPlan, FormatRequest, NewFileSystem, Partition, People, lay_out};
use holdfast_volume::{Options, Volume};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// The offset of the partition, in bytes, as is usual.
const START: u64 = 1 << 20;

#[derive(Serialize)]
struct FormatOutput {
    device: PathBuf,
    sidecar: PathBuf,
    volume: String,
    size_bytes: u64,
}

/// `holdfast volume format`
pub fn format(arguments: &Format, directories: &Directories, format: output::Format) -> Outcome {
    let places = VolumeFolders::new(directories)?;
    let disk = Medium::open(&arguments.device)?;
    let sidecar = Sidecar::new(&arguments.sidecar);
    if sidecar.log.exists() || sidecar.policy.exists() {
        let message = format!("{}: is the sidecar of a card already", sidecar.directory.display());
        return Err(Failure::new(Exit::CannotCreate, message)
            .hint("name another directory; or remove this one, if nobody needs what its card has"));
    }
    if !arguments.erase && !is_blank(&*disk.device)? {
        let message = format!("{}: holds something", arguments.device.display());
        return Err(Failure::new(Exit::CannotCreate, message)
            .hint("with --erase it is lost; `holdfast volume adopt` takes it over with what is on it"));
    }
    let signed_by = arguments.signed_by.as_deref().map(signed::package).transpose()?;
    signed::listing(signed_by.iter(), &signed::own_digest()?)?;
    let disk_bytes = usable(&disk);
    if !(64 << 20..(2_u64 << 40)).contains(&disk_bytes) {
        let message = format!("{}: disks of 64 MiB to 2 TiB can be formatted", arguments.device.display());
        return Err(Failure::new(Exit::Usage, message));
    }
    let mut id = [0; 4];
    keys::random(&mut id)?;
    let new = NewFileSystem {
        label: arguments.label.clone(),
        cluster_bytes: arguments.cluster_kib.map(|kib| kib * 1024),
        id: u32::from_le_bytes(id),
    };
    let bytes = disk_bytes - START;
    let wanted = FormatRequest {
        disk_bytes,
        partitions: vec![(START, bytes)],
        cluster_bytes: new.cluster_bytes,
        label: new.label.clone(),
        id: new.id,
    };
    let laid = lay_out(wanted).map_err(|error| refused(&arguments.device, error))?;
    let geometry = laid.geometries[0];
    let partition = Partition { number: 1, start: START, bytes, geometry };
    partition.check(disk_bytes).map_err(failed)?;
    let blocks = table_blocks(laid.geometries.iter());

    let policy = sidecar.make_policy(blocks)?;
    let joined: Arc<dyn Device> =
        Arc::new(JoinedDevice::new(disk.device.clone(), disk_bytes, policy.device.clone()));
    let (secret, new_key) = Secret::read_or_make(&sidecar.key)?;
    let (mut volume, mut identity) = ([0; 16], [0; 16]);
    keys::random(&mut volume)?;
    keys::random(&mut identity)?;
    make_log(&sidecar.log, &*joined, &secret, &volume, Some(RING_BYTES))?;
    if let Some(key) = new_key {
        key.keep();
    }
    let log = Medium::open(&sidecar.log)?;
    let remembered = places.of(&volume);
    let _lock = remembered.lock()?;
    let key = secret.of(&volume);

    let bar = bytes_bar("erasing");
    let interrupt = Interrupt::listen()?;
    let step = |done: u64, of: u64| interrupt.step(&bar, done, of);
    let whole = Volume::adopt_empty(joined.clone(), log.device.clone(), &key, opening::salt()?, &step)?;
    bar.finish_and_clear();
    if !whole {
        return Err(Failure::new(Exit::Failed, "stopped; nothing is formatted"));
    }
    let opened = Volume::open(joined, log.device.clone(), &key, Options::default(), None, opening::salt()?)?;
    let (volume, _) = opened;
    let place = DiskLayout { identity, partitions: vec![partition], table: (disk_bytes, blocks), signed_by };
    volume.write(0, &laid.mbr)?;
    write_record(&volume, &place)?;
    volume.start()?;
    let about = VolumeRecord {
        disk: disk.path.clone(),
        log: log.path.clone(),
        key: absolute(&sidecar.key),
        size_bytes: disk_bytes,
        protected: true,
        anchor: None,
        tpm: false,
    };
    remembered.remember(&about)?;
    let name = format!("volume {}", hex(&identity));
    let plan = DiskPlan { volume, layout: place, bus: bus::of(&disk.path), format: Some(new) };
    let stack = start(name, vec![plan], Vec::new(), People::default(), TABLE_BLOCKS_MAX as usize * 2)?;
    let ready = stack.wait_until_ready(PATIENCE);
    let anchors = stack.stop().map_err(failed)?;
    ready.map_err(failed)?;
    anchor::write(&remembered.anchor, &anchors[0])?;
    let (device, sidecar) = (about.disk, absolute(&sidecar.directory));
    let done = FormatOutput { device, sidecar, volume: remembered.name(), size_bytes: disk_bytes };
    format.print(&done, |done| {
        format!(
            "{} is formatted; keep a copy of {} where it is not",
            done.device.display(),
            done.sidecar.join("key").display()
        )
    })
}
