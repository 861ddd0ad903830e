//! What is to run, and who may speak with whom: said before anything is started, and checked as a whole.

use crate::channel::Bounds;
use crate::error::{ComponentError, Result};
use crate::ports::Role;
use crate::region::{Access, Region};
use crate::sandbox::{Door, Profile};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// A set of components and the channels between them.
#[derive(Default)]
pub struct Plan {
    /// What it is called in listings.
    pub name: String,
    /// In the order in which they begin.
    pub components: Vec<ComponentPlan>,
    /// All channels there will be. What is not here cannot be said.
    pub channels: Vec<ChannelPlan>,
}

/// One component.
pub struct ComponentPlan {
    /// What it is called; unique in its plan.
    pub name: String,
    /// Its name in the program's table.
    pub program: String,
    /// What it may ask of the kernel.
    pub profile: Profile,
    /// What it is told when it begins. Not secret from who may read its memory: host root.
    pub configuration: Vec<u8>,
    /// Regions it holds from the beginning.
    pub regions: Vec<RegionGrant>,
    /// Open files that it holds, by name: a session with FUSE, a device, a socket.
    pub files: Vec<(String, OwnedFd)>,
    /// What it checks before it acts, in words, for listings.
    pub guards: Vec<String>,
    /// Its entry in the table of lines of code, for listings.
    pub source: Option<String>,
    /// What happens when it crashes.
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

/// A region, as one component may use it.
#[derive(Clone)]
pub struct RegionGrant {
    /// What the component calls it.
    pub name: String,
    /// Which.
    pub region: Arc<Region>,
    /// How.
    pub access: Access,
}

/// A channel: the privilege of one end to ask the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelPlan {
    /// Who asks.
    pub asks: End,
    /// Who answers.
    pub serves: End,
    /// What it carries at most.
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
    /// Whose; `None`: the process that supervises.
    pub component: Option<String>,
    /// What that one calls it.
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

/// What happens when a component crashes. One that ends by itself, with success, is done and is not started anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restart {
    /// How often it is started anew within `window`; once more, and it stays down.
    pub times_max: u32,
    /// The window.
    pub window: Duration,
    /// How long the first new start waits. Each further one within the window waits twice as long.
    pub wait: Duration,
}

impl Default for Restart {
    fn default() -> Restart {
        Restart { times_max: 5, window: Duration::from_secs(60), wait: Duration::from_millis(20) }
    }
}

impl Restart {
    /// A crash is the end.
    pub const NEVER: Restart = Restart { times_max: 0, window: Duration::ZERO, wait: Duration::ZERO };

    /// How long start number `times` within the window waits, counted from zero.
    pub(crate) fn wait_before(&self, times: u32) -> Duration {
        self.wait.saturating_mul(1 << times.min(10)).min(Duration::from_secs(10))
    }
}

impl Plan {
    /// # Errors
    /// It does not hold together.
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
            if component.profile.threads_max > 1 && !component.profile.has(Door::Threads) {
                return wrong(format!("{} may have threads but lacks the door for them", component.name));
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
