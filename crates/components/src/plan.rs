//! The plan: which components run, connected by which channels. It is made before anything starts, and
//! checked as a whole.

use crate::channel::Bounds;
use crate::error::{ComponentError, Result};
use crate::ports::Role;
use crate::region::{Access, Region};
use crate::sandbox::{Permission, Profile};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// A set of components and the channels between them.
#[derive(Default)]
pub struct Plan {
    /// The name of the plan in listings.
    pub name: String,
    /// The components, in the order in which they begin.
    pub components: Vec<ComponentPlan>,
    /// All channels. Components cannot communicate otherwise.
    pub channels: Vec<ChannelPlan>,
}

/// One component.
pub struct ComponentPlan {
    /// The name of the component, unique in its plan.
    pub name: String,
    /// Its name in the program's table.
    pub program: String,
    /// The permissions and limits.
    pub profile: Profile,
    /// The component's configuration, sent when it starts. Not secret from root of the host, who can read its
    /// memory.
    pub configuration: Vec<u8>,
    /// Regions it holds from the beginning.
    pub regions: Vec<RegionGrant>,
    /// Open files that it holds, by name: a session with FUSE, a device, a socket.
    pub files: Vec<(String, OwnedFd)>,
    /// What the component checks before it acts, in words, for listings.
    pub guards: Vec<String>,
    /// The name of its set of sources in the table of lines of code, for listings.
    pub source: Option<String>,
    /// Whether and how often it is restarted after a crash.
    pub restart: Restart,
}

impl ComponentPlan {
    /// A component that runs the table's entry of the same name, with a profile.
    pub fn new(name: &str, profile: Profile) -> ComponentPlan {
        ComponentPlan {
            name: name.to_owned(),
            program: name.to_owned(),
            profile,
            configuration: Vec::new(),
            regions: Vec::new(),
            files: Vec::new(),
            guards: Vec::new(),
            source: None,
            restart: Restart::default(),
        }
    }
}

/// A region that one component may use.
#[derive(Clone)]
pub struct RegionGrant {
    /// The name that the component has for it.
    pub name: String,
    /// The region.
    pub region: Arc<Region>,
    /// The access that the component gets.
    pub access: Access,
}

/// A channel: the privilege of one end to ask the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelPlan {
    /// The end that sends requests.
    pub asks: End,
    /// The end that serves them.
    pub serves: End,
    /// The bounds of its messages.
    pub bounds: Bounds,
}

impl ChannelPlan {
    /// A channel with the usual bounds.
    pub fn new(asks: End, serves: End) -> ChannelPlan {
        ChannelPlan { asks, serves, bounds: Bounds::default() }
    }

    pub(crate) fn ends(&self) -> [(&End, Role); 2] {
        [(&self.asks, Role::Asks), (&self.serves, Role::Serves)]
    }
}

/// One end of a channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct End {
    /// The component; `None`: the supervising process.
    pub component: Option<String>,
    /// The name of the port at that component.
    pub port: String,
}

impl End {
    /// The end of a component.
    pub fn of(component: &str, port: &str) -> End {
        End { component: Some(component.to_owned()), port: port.to_owned() }
    }

    /// The end of the process that supervises.
    pub fn host(port: &str) -> End {
        End { component: None, port: port.to_owned() }
    }
}

/// How often a component is restarted after crashes. One that exits successfully is not restarted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restart {
    /// Most restarts within `window`; after one more crash the component stays down.
    pub times_max: u32,
    /// The time in which so many restarts are allowed.
    pub window: Duration,
    /// Wait before the first restart. Each further one within the window waits twice as long.
    pub wait: Duration,
}

impl Default for Restart {
    fn default() -> Restart {
        Restart { times_max: 5, window: Duration::from_secs(60), wait: Duration::from_millis(20) }
    }
}

impl Restart {
    /// A component that crashes stays down.
    pub const NEVER: Restart = Restart { times_max: 0, window: Duration::ZERO, wait: Duration::ZERO };

    /// Wait before restart number `times` within the window, counted from zero.
    pub(crate) fn wait_before(&self, times: u32) -> Duration {
        self.wait.saturating_mul(1 << times.min(10)).min(Duration::from_secs(10))
    }
}

impl Plan {
    /// # Errors
    /// The plan is inconsistent.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |words: String| Err(ComponentError::Plan(words));
        let mut names = BTreeSet::new();
        for component in &self.components {
            if component.name.is_empty() || component.name.len() > 64 {
                return wrong("the name of a component has 1 to 64 bytes".to_owned());
            }
            if !names.insert(&component.name) {
                return wrong(format!("two components are called {}", component.name));
            }
            if component.profile.threads_max > 1 && !component.profile.has(Permission::Threads) {
                return wrong(format!(
                    "{} may have threads but lacks the permission for them",
                    component.name
                ));
            }
        }
        let mut ports = BTreeSet::new();
        for channel in &self.channels {
            channel.bounds.check()?;
            for (end, _) in channel.ends() {
                if end.component.as_ref().is_some_and(|component| !names.contains(component)) {
                    return wrong(format!(
                        "channel {} ends at {:?}, which is not there",
                        end.port, end.component
                    ));
                }
                if !ports.insert((&end.component, &end.port)) {
                    return wrong(format!("two channels of {:?} are called {}", end.component, end.port));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(names: &[&str], channels: &[(End, End)]) -> Plan {
        Plan {
            name: "test".to_owned(),
            components: names.iter().map(|name| ComponentPlan::new(name, Profile::default())).collect(),
            channels: channels.iter().map(|(a, b)| ChannelPlan::new(a.clone(), b.clone())).collect(),
        }
    }

    /// A plan names each thing once, and channels end at components there are.
    #[test]
    fn plans_hold_together() {
        let good =
            plan(&["a", "b"], &[(End::of("a", "x"), End::of("b", "x")), (End::host("x"), End::of("a", "y"))]);
        assert!(good.check().is_ok());
        assert!(plan(&["a", "a"], &[]).check().is_err());
        assert!(plan(&[""], &[]).check().is_err());
        assert!(plan(&["a"], &[(End::of("a", "x"), End::of("c", "x"))]).check().is_err());
        let twice = [(End::host("x"), End::of("a", "x")), (End::host("y"), End::of("a", "x"))];
        assert!(plan(&["a"], &twice).check().is_err());
        let mut threads = plan(&["a"], &[]);
        threads.components[0].profile.threads_max = 2;
        assert!(threads.check().is_err());
        let mut large = plan(&["a"], &[(End::host("x"), End::of("a", "x"))]);
        large.channels[0].bounds.body_bytes_max += 1;
        assert!(large.check().is_err());
    }

    /// Waiting grows and has an end.
    #[test]
    fn waits_grow() {
        let restart = Restart::default();
        assert!(restart.wait_before(1) == restart.wait * 2 && restart.wait_before(0) == restart.wait);
        assert_eq!(restart.wait_before(u32::MAX), Duration::from_secs(10));
    }
}
