//! `holdfast fs quota`: how much users have stored at the server, and may store.

use crate::admin::{self, Change};
use crate::args::{Administer, Read};
use crate::cache::bytes_of;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Format, clean, table};
use crate::paths::Directories;
use clap::{Args, Subcommand};
use holdfast_client::Engine;
use indicatif::HumanBytes;
use serde::{Deserialize, Serialize};

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

/// What a user has stored, as it is printed.
#[derive(Serialize, Deserialize)]
struct Stored {
    user: String,
    blocks: u64,
    bytes: u64,
    /// `null`: no limit.
    limit: Option<u64>,
}

pub fn run(arguments: &Quota, directories: &Directories, format: Format) -> Outcome {
    match &arguments.command {
        QuotaCommand::List(read) => {
            let stored: Vec<Stored> = admin::ask(&read.url, &read.key, Change::Usage, directories)?;
            format.print(&stored, |stored| clean(&listed(stored)))
        }
        QuotaCommand::Set { administer, user, limit } => {
            let change = Change::SetQuota { user: user.clone(), bytes: limit.0 };
            admin::apply(administer, change, directories, format)
        }
    }
}

fn listed(stored: &[Stored]) -> String {
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

/// Asks the server, through an engine that runs.
pub fn usage(engine: &Engine) -> Outcome<serde_json::Value> {
    let members = engine.fetch()?.membership();
    let name = |user| members.users.get(user).map_or("?", |user| user.name.as_str()).to_owned();
    let usage = engine.usage()?;
    let stored: Vec<Stored> = usage
        .iter()
        .map(|usage| Stored {
            user: name(&usage.user),
            blocks: usage.blocks,
            bytes: usage.bytes,
            limit: usage.limit,
        })
        .collect();
    serde_json::to_value(stored).map_err(|error| Failure::new(Exit::Internal, error))
}

/// What was done, in words.
pub fn was_set(user: &str, bytes: Option<u64>) -> String {
    match bytes {
        Some(bytes) => {
            format!("user {user} may store {} at the server; what is there already stays", HumanBytes(bytes))
        }
        None => format!("user {user} may store any amount"),
    }
}
