//! DiskFormatter: gives the blocks of a new disk to the FSDriver that will manage them (paper, section 4.8).
//! It acts for the administrator, who owns a newly formatted disk, but nothing that users have stored there
//! since.

use crate::StackError;
use crate::asking::nonsense;
use crate::protocol::{Blocks, PolicyReply, PolicyRequest};
use holdfast_access::Principal;
use holdfast_components::{Asker, Context, Patience};
use std::process::ExitCode;
use std::time::Duration;

/// The alias of the administrator, in whose name it nominates.
const ADMINISTRATOR: u16 = 2;
/// How long PolicyMgr may take to erase the disk.
const WAIT: Duration = Duration::from_secs(600);

/// The blocks to hand over, and their new owner.
#[derive(Clone, PartialEq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Configuration {
    /// Partitions by disk and blocks, and the FSDriver of each.
    pub partitions: Vec<(u16, Blocks, Principal)>,
}

/// Runs the component.
pub fn main(context: Context) -> ExitCode {
    crate::component(&context, |configuration: Configuration| {
        let policy: Asker<PolicyRequest, PolicyReply> = context.ports.asker("policy")?;
        for (disk, blocks, to) in configuration.partitions {
            let question = PolicyRequest::Nominate { disk, blocks, to };
            match policy.ask(ADMINISTRATOR, &question, Patience::of(WAIT))? {
                PolicyReply::Done => {}
                _ => return Err(StackError::Component(nonsense("PolicyMgr").to_string())),
            }
        }
        Ok(())
    })
}
