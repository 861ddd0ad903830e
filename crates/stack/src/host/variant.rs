//! The stack in other arrangements, to measure the cost of each separation and each guard (the paper's
//! section 5). The code is the same; only the plan differs. No command of Holdfast uses them.

use super::encode;
use super::plan::ComponentSet;
use super::roles::{CACHE, FILES, POLICY, SESSION, to_session};
use crate::{COMPONENTS, StackError, const_policy, policy_manager};
use holdfast_access::Principal;
use holdfast_components::{ChannelPlan, End, Event, Main, Merged, Plan, Ports, Program, Supervisor};
use std::sync::Arc;

/// The component that replaces PolicyMgr, in the table of [`variant_components`].
const CONST_POLICY: &str = "const-policy-manager";
const MAPPED: &str = "fs-driver-mapped";
/// The host's port to CacheMgr, in measurements.
pub(super) const TO_CACHE: &str = "cache";
/// The host's port to the program that replaces a VFS.
pub const TO_CLIENT: &str = "client";

/// An arrangement of components, for measurements.
#[derive(Clone, Copy, Default, Debug)]
pub struct Variant {
    /// Whether all components run in the host's process, where a request is a function call (the paper's
    /// UFS).
    pub is_merged: bool,
    /// Whether there is one ACL for all blocks and no table (ConstPolicyMgr).
    pub has_constant_policy: bool,
    /// Whether FSDriver maps its metadata into its memory (the paper's PFS mmap).
    pub is_mapped: bool,
    /// The component of the program's table that replaces the VFS of each session (the paper's VFS in the
    /// client). The host sends it requests over [`TO_CLIENT`].
    pub client: Option<&'static str>,
    /// Whether empty regions are retained, so that components that map them keep their views.
    pub keeps_regions: bool,
    /// Whether the host may make CacheMgr give up all blocks.
    pub is_measured: bool,
}

/// The components that exist only in variants, for the table of a program that measures.
pub fn variant_components() -> [(&'static str, Main); 2] {
    [(CONST_POLICY, const_policy::main), (MAPPED, crate::fs_driver::main_mapped)]
}

impl Variant {
    /// Changes the plan of the ordinary stack.
    ///
    /// # Errors
    /// The constant policy supports one disk, whose owner is one partition's FSDriver.
    pub(super) fn apply(
        &self,
        plan: &mut Plan,
        cast: &ComponentSet,
        users: Vec<Principal>,
    ) -> Result<(), StackError> {
        let owner = match &cast.drivers[..] {
            [driver] => Some(driver.principal.clone()),
            _ => None,
        };
        for component in &mut plan.components {
            if component.name == POLICY && self.has_constant_policy {
                let owner = owner.clone().ok_or_else(|| {
                    StackError::Component("a constant policy is for one partition".to_owned())
                })?;
                component.program = CONST_POLICY.to_owned();
                let principals = users.iter().cloned().chain([owner.clone()]).collect();
                component.configuration = encode(&const_policy::Configuration { principals, owner });
            }
            if component.name == POLICY && self.keeps_regions {
                let mut configuration: policy_manager::Configuration =
                    borsh::from_slice(&component.configuration)
                        .map_err(|error| StackError::Component(error.to_string()))?;
                configuration.spare_regions = u32::MAX;
                component.configuration = encode(&configuration);
            }
            if component.program == FILES && self.is_mapped {
                component.program = MAPPED.to_owned();
            }
            if component.name.starts_with(SESSION)
                && let Some(client) = self.client
            {
                component.program = client.to_owned();
                let to_vfs = to_session(&component.name);
                let is_to_vfs = |end: &End| end.component.is_none() && end.port == to_vfs;
                plan.channels.retain(|channel| !is_to_vfs(&channel.asks));
                plan.channels
                    .push(ChannelPlan::new(End::host(TO_CLIENT), End::of(&component.name, "from-host")));
            }
        }
        if self.is_measured {
            plan.channels.push(ChannelPlan::new(End::host(TO_CACHE), End::of(CACHE, "from-host")));
        }
        Ok(())
    }
}

/// What runs the plan: separate processes, or one process with all components.
pub(super) enum Runtime {
    Apart(Supervisor),
    Merged(Merged),
}

impl Runtime {
    pub(super) fn start(
        variant: &Variant,
        program: Program,
        plan: Plan,
        listener: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Runtime, StackError> {
        match variant.is_merged {
            false => Ok(Runtime::Apart(Supervisor::start(program, plan, listener)?)),
            true => {
                let mut table: Vec<(&str, Main)> = COMPONENTS.to_vec();
                table.extend(variant_components());
                Ok(Runtime::Merged(Merged::start(&table, plan, listener)?))
            }
        }
    }

    pub(super) fn ports(&self) -> &Arc<Ports> {
        match self {
            Runtime::Apart(supervisor) => supervisor.ports(),
            Runtime::Merged(merged) => merged.ports(),
        }
    }

    pub(super) fn stop(self) {
        match self {
            Runtime::Apart(supervisor) => supervisor.stop(),
            Runtime::Merged(merged) => merged.stop(),
        }
    }
}
