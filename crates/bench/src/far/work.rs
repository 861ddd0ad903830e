//! The work that is done over the link.

use super::place::limited;
use super::site::{Side, Site};
use super::{build, edit, tree};
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The files that works use.
#[derive(clap::Args)]
pub(super) struct Inputs {
    /// A text, for `vim` and `office`.
    #[arg(long)]
    document: Option<PathBuf>,
    /// A directory with the C sources of a library, for `build` and `build-first`.
    #[arg(long)]
    source: Option<PathBuf>,
    /// The header of it that is changed.
    #[arg(long, default_value = "llimits.h")]
    header: String,
    /// A tree, for `turn`, `checkout` and `look`.
    #[arg(long)]
    old: Option<PathBuf>,
    /// Its next release, for `turn` and `checkout`.
    #[arg(long)]
    new: Option<PathBuf>,
}

/// A work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Work {
    /// A text is opened in vim, changed and saved five times: swap file, backup, rename.
    Vim,
    /// An office document is changed and saved five times: lock file, auto-saves, temporary file, rename.
    Office,
    /// A library is built again after a header was changed; what the build before made is there.
    Build,
    /// The same, but nothing was ever built.
    BuildFirst,
    /// A release of a tree is turned into the next, file by file.
    Turn,
    /// A tree is copied to the local disk; its earlier release was read before.
    Checkout,
    /// Everything of a tree that was just read is listed and read again.
    Look,
}

fn wanted<'i>(input: &'i Option<PathBuf>, option: &str) -> anyhow::Result<&'i Path> {
    let path = input.as_deref().with_context(|| format!("this work needs --{option}"))?;
    ensure!(path.exists(), "--{option}: there is no {}", path.display());
    Ok(path)
}

impl Inputs {
    fn document(&self) -> anyhow::Result<&Path> {
        wanted(&self.document, "document")
    }

    fn source(&self) -> anyhow::Result<&Path> {
        wanted(&self.source, "source")
    }

    fn old_tree(&self) -> anyhow::Result<&Path> {
        wanted(&self.old, "old")
    }

    fn new_tree(&self) -> anyhow::Result<&Path> {
        wanted(&self.new, "new")
    }
}

/// The document, as `vim` and `office` find it.
const TEXT: &str = "document.txt";
const OFFICE: &str = "document.odt";
const LIMIT: Duration = Duration::from_secs(300);

impl Work {
    pub(super) fn name(self) -> &'static str {
        match self {
            Work::Vim => "vim",
            Work::Office => "office",
            Work::Build => "build",
            Work::BuildFirst => "build-first",
            Work::Turn => "turn",
            Work::Checkout => "checkout",
            Work::Look => "look",
        }
    }

    /// Whether the files that it needs were given.
    pub(super) fn check(self, inputs: &Inputs) -> anyhow::Result<()> {
        match self {
            Work::Vim | Work::Office => inputs.document().map(drop),
            Work::Build | Work::BuildFirst => {
                wanted(&Some(inputs.source()?.join(&inputs.header)), "source").map(drop)
            }
            Work::Turn | Work::Checkout => inputs.old_tree().and(inputs.new_tree()).map(drop),
            Work::Look => inputs.old_tree().map(drop),
        }
    }

    /// Whether a side can do it.
    pub(super) fn applies(self, side: Side) -> bool {
        side != Side::Rsync || matches!(self, Work::Turn | Work::Checkout)
    }

    /// The directory with its result at the server.
    pub(super) fn place(self) -> &'static str {
        if self == Work::Checkout { "new" } else { "work" }
    }

    /// What the server has from the beginning.
    pub(super) fn prepare(self, inputs: &Inputs, near: &Path) -> anyhow::Result<()> {
        let at = near.join("work");
        std::fs::create_dir_all(&at)?;
        match self {
            Work::Vim => tree::write(&at.join(TEXT), &std::fs::read(inputs.document()?)?),
            Work::Office => edit::make_office(inputs.document()?, &at.join(OFFICE)),
            Work::Build | Work::BuildFirst => build::prepare(inputs.source()?, &at),
            Work::Turn | Work::Checkout | Work::Look => tree::copy(inputs.old_tree()?, &at),
        }
    }

    /// What the client has done before.
    pub(super) fn warm(self, inputs: &Inputs, site: &Site<'_>, local: &Path) -> anyhow::Result<()> {
        let at = site.far().join("work");
        match self {
            Work::Build => build::make(&at, LIMIT),
            // rsync starts from the client's copy.
            Work::Checkout => match site.rsync(LIMIT) {
                Some(_) => {
                    tree::copy(inputs.old_tree()?, &local.join("new"))?;
                    // Otherwise rsync would take a file of the same size, written in the same second, for the same.
                    tree::age(&local.join("new"))
                }
                None => tree::read(&at),
            },
            Work::Turn if site.rsync(LIMIT).is_some() => Ok(()),
            _ => tree::read(&at),
        }
    }

    /// What others do while the client is away.
    pub(super) fn publish(self, inputs: &Inputs, near: &Path) -> anyhow::Result<()> {
        match self {
            Work::Checkout => tree::copy(inputs.new_tree()?, &near.join("new")),
            _ => Ok(()),
        }
    }

    /// What the client does over the link before the measurement.
    pub(super) fn settle(self, site: &Site<'_>) -> anyhow::Result<()> {
        let at = site.far().join("work");
        match self {
            Work::Look => tree::read(&at),
            _ if site.rsync(LIMIT).is_some() => Ok(()),
            _ => tree::files(&at).map(drop),
        }
    }

    /// The measured part.
    pub(super) fn run(
        self,
        inputs: &Inputs,
        site: &Site<'_>,
        local: &Path,
        limit: Duration,
    ) -> anyhow::Result<()> {
        let at = site.far().join("work");
        match self {
            Work::Vim => edit::vim(&at.join(TEXT), limit),
            Work::Office => edit::office_saves(&at.join(OFFICE), limit),
            Work::Build | Work::BuildFirst => {
                build::touch(&at.join(&inputs.header))?;
                build::make(&at, limit)
            }
            Work::Turn => match site.rsync(limit) {
                Some((mut rsync, server)) => {
                    rsync.arg(format!("{}/", inputs.new_tree()?.display())).arg(format!("{server}/work/"));
                    site.at_client(&mut rsync)
                }
                None => tree::turn(inputs.old_tree()?, inputs.new_tree()?, &at),
            },
            Work::Checkout => match site.rsync(limit) {
                Some((mut rsync, server)) => {
                    rsync.arg(format!("{server}/new/")).arg(local.join("new"));
                    site.at_client(&mut rsync)
                }
                None => {
                    let mut copy = limited(limit, "cp");
                    site.at_client(copy.arg("-r").arg(site.far().join("new")).arg(local))
                }
            },
            Work::Look => tree::read(&at),
        }
    }

    /// The tree that the client has at the end.
    pub(super) fn result(
        self,
        inputs: &Inputs,
        site: &Site<'_>,
        local: &Path,
    ) -> anyhow::Result<tree::Digests> {
        match self {
            Work::Turn => tree::digests(inputs.new_tree()?),
            Work::Checkout => tree::digests(&local.join("new")),
            _ => tree::digests(&site.far().join("work")),
        }
    }
}
