//! Determines the bus of a disk. Disks on one bus share a DiskDriver, because a failure of the bus affects
//! all of them. Images are on no bus and share one driver.

use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The name of a disk's bus.
pub(super) fn of(path: &Path) -> String {
    let Ok(metadata) = std::fs::metadata(path) else { return "files".to_owned() };
    if !metadata.file_type().is_block_device() {
        return "files".to_owned();
    }
    let (major, minor) = (rustix::fs::major(metadata.st_rdev()), rustix::fs::minor(metadata.st_rdev()));
    let place = Path::new("/sys/dev/block").join(format!("{major}:{minor}")).canonicalize();
    place.map_or_else(|_| "disks".to_owned(), |place| in_sysfs(&place.to_string_lossy()))
}

/// The name of the bus from the device's path in sysfs: its controller.
fn in_sysfs(place: &str) -> String {
    const CONTROLLERS: [&str; 6] = ["usb", "ata", "mmc", "nvme", "virtio", "host"];
    let is_numbered = |part: &str| {
        CONTROLLERS.iter().any(|name| {
            let number = part.strip_prefix(name).unwrap_or_default();
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let bus = place.split('/').find(|part| is_numbered(part));
    let is_virtual = place.contains("/virtual/");
    bus.unwrap_or(if is_virtual { "virtual" } else { "disks" }).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: disks behind one controller are on one bus, whatever its kind.
    #[test]
    fn buses() {
        let pci = "/sys/devices/pci0000:00/0000:00:14.0";
        let cases = [
            (format!("{pci}/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0/block/sdb"), "usb1"),
            (format!("{pci}/usb1/1-3/1-3:1.0/host5/target5:0:0/5:0:0:0/block/sdc/sdc1"), "usb1"),
            (format!("{pci}/ata3/host2/target2:0:0/2:0:0:0/block/sda"), "ata3"),
            (format!("{pci}/mmc_host/mmc0/mmc0:aaaa/block/mmcblk0"), "mmc0"),
            (format!("{pci}/nvme/nvme0/nvme0n1"), "nvme0"),
            (format!("{pci}/virtio2/block/vda"), "virtio2"),
            ("/sys/devices/virtual/block/loop3".to_owned(), "virtual"),
            ("/sys/devices/platform/something/block/xyz".to_owned(), "disks"),
        ];
        for (place, bus) in cases {
            assert_eq!(in_sysfs(&place), bus, "{place}");
        }
    }
}
