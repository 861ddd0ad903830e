//! `holdfast fs quota`: how much users have stored at the server, and may store.

use crate::admin;
use crate::args::{Administer, Read};
use crate::cache::bytes_of;
use crate::exit::Outcome;
use crate::output::{Format, clean, table};
use crate::paths::Directories;
use clap::{Args, Subcommand};
use holdfast_daemon::membership::{Change, QuotaUsage, ShowUsage};
use indicatif::HumanBytes;

/// `holdfast fs quota`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast fs quota list hf://HOST/FSID --key anna.key
  holdfast fs quota set hf://HOST/FSID anna 20G --superuser superuser.key
  holdfast fs quota set hf://HOST/FSID anna none --superuser superuser.key

Each user is charged for exactly the blocks that their devices stored first, as they rest at the server (compressed, with
what the server needs to keep them), whoever the files belong to. What is deleted or overwritten is charged until the
server has collected it: when nothing has referred to it for a day, and no past state that is kept has it.")]
pub struct Quota {
    /// What to do.
    #[command(subcommand)]
    pub command: QuotaCommand,
}

/// Quotas.
#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    /// Show what you have stored and may store; with the superuser's key, what everybody has.
    List(Read),
    /// Limit what a user may store. What is there already stays.
    Set {
        /// Where, and by whose leave.
        #[command(flatten)]
        administer: Administer,
        /// Name of the user.
        #[arg(value_name = "USER")]
        user: String,
        /// Bytes, or with K, M, G or T for powers of 1024; `none` for no limit.
        #[arg(value_name = "SIZE", value_parser = limit_of)]
        limit: Limit,
    },
}

/// A limit, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit(Option<u64>);

fn limit_of(text: &str) -> Result<Limit, String> {
    if text == "none" { Ok(Limit(None)) } else { bytes_of(text).map(|bytes| Limit(Some(bytes))) }
}

pub fn run(arguments: &Quota, directories: &Directories, format: Format) -> Outcome {
    match &arguments.command {
        QuotaCommand::List(read) => {
            let stored = admin::ask(&read.url, &read.key, &ShowUsage, directories)?;
            format.print(&stored, |stored| clean(&listed(stored)))
        }
        QuotaCommand::Set { administer, user, limit } => {
            let change = Change::SetQuota { user: user.clone(), bytes: limit.0 };
            admin::apply_saying(administer, change, directories, format, |_| limit_set(user, limit.0))
        }
    }
}

fn listed(stored: &[QuotaUsage]) -> String {
    let rows: Vec<Vec<String>> = stored
        .iter()
        .map(|stored| {
            let limit = match stored.limit {
                Some(limit) => format!("of {}", HumanBytes(limit)),
                None => "no limit".to_owned(),
            };
            let blocks = format!("{} blocks", stored.blocks);
            vec![stored.user.clone(), HumanBytes(stored.bytes).to_string(), limit, blocks]
        })
        .collect();
    table(&rows)
}

/// What was done, in words.
fn limit_set(user: &str, bytes: Option<u64>) -> String {
    match bytes {
        Some(bytes) => {
            format!("user {user} may store {} at the server; what is there already stays", HumanBytes(bytes))
        }
        None => format!("user {user} may store any amount"),
    }
}
