//! `holdfast fs quota`: how much users have stored at the server, and how much they may.

use crate::admin::asking::ask;
use crate::admin::changing::apply_saying;
use crate::args::{Quota, QuotaCommand};
use crate::output::{Format, clean, table};
use holdfast_daemon::membership::{Change, QuotaUsage, ShowUsage};
use holdfast_daemon::paths::Directories;
use holdfast_failure::Outcome;
use indicatif::HumanBytes;

/// `holdfast fs quota`
pub fn run(arguments: &Quota, directories: &Directories, format: Format) -> Outcome {
    match &arguments.command {
        QuotaCommand::List(read) => {
            let stored = ask(&read.url, &read.key, &ShowUsage, directories)?;
            format.print(&stored, |stored| clean(&listed(stored)))
        }
        QuotaCommand::Set { administer, user, limit } => {
            let change = Change::SetQuota { user: user.clone(), bytes: limit.0 };
            apply_saying(administer, change, directories, format, |_| limit_set(user, limit.0))
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
