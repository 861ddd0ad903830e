//! The command line of what has to do with images of releases.

use crate::reading::args::ReleaseSource;
use clap::Args;
use std::path::PathBuf;

/// `holdfast release export`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release export hf+release:4f1c...@https://mirror.example/release/ --to /srv/image
  holdfast release export https://mirror.example/release/ --id 4f1c... --to /srv/image --prune
  holdfast mount /srv/image /mnt
  holdfast release verify /srv/image

DIR gets the release as an image that the kernel mounts by itself (EROFS and overlayfs), at the speed of a local disk: \
tree.erofs with names, attributes and small files, objects/ with the content of the others. All of it is verified while \
it is written. Exporting again brings DIR up to date and writes only content that is new; stopped at any time, the image \
is the old one or the new one.

After the export nothing checks what is read, unless the objects have fs-verity (`holdfast mount --verity`); \
`holdfast release verify DIR` compares everything with what was signed. docs/releases.md says more.")]
pub struct Export {
    /// Which release
    #[command(flatten)]
    pub source: ReleaseSource,
    /// The image's directory; made if it is not there
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Delete objects that this image does not need, such as those of earlier releases only
    #[arg(long)]
    pub prune: bool,
}

/// What concerns mounts of images only.
#[derive(Debug, Args)]
#[command(next_help_heading = "Images")]
pub struct ImageMount {
    /// Read only objects that the kernel checks itself (fs-verity was enabled for each; see docs/releases.md)
    #[arg(long)]
    pub verity: bool,
}
