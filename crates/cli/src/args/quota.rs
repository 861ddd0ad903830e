//! Arguments of `holdfast fs quota`.

use super::{Administer, Read};
use crate::cache::bytes_of;
use clap::{Args, Subcommand};

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
pub struct Limit(pub Option<u64>);

fn limit_of(text: &str) -> Result<Limit, String> {
    if text == "none" { Ok(Limit(None)) } else { bytes_of(text).map(|bytes| Limit(Some(bytes))) }
}
