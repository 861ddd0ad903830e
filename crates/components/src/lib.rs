//! Processes that do not trust each other: a runtime that starts parts of a program in sandboxes, gives each
//! of them the channels and regions that its task needs, and restarts a crashed one (sections 2 and 3.2 of
//! the paper, which has a kernel of its own where this uses Linux).
//!
//! ```text
//! Plan ── Supervisor ──┬─ control ─ component A ─┐ ports: channels, each packet under a proven alias
//!                      ├─ control ─ component B ─┘ regions: views that read, or read and write
//!                      └─ violations, ends, restarts, listing
//! ```
//!
//! Guarantees: a component reaches nothing but what was passed to it (`sandbox`). No message is acted upon
//! that was not sent under an alias proven to the runtime. Through a channel, a component can do to another
//! only what the other's guard accepts. A crash loses what was in flight, and clients learn that it is
//! unknown whether that was done. Host root, the kernel, and the supervisor's own process are trusted.
//!
//! See `docs/internals/components.md`.
#![deny(unsafe_code)]

mod alias;
mod channel;
mod component;
mod error;
mod kernel;
mod listing;
mod memory;
mod merged;
mod plan;
mod ports;
mod region;
mod sandbox;
mod selfcheck;

mod spawn;
mod supervisor;

pub use alias::{ALIASES, Alias, AliasPage, AliasView, PrincipalDigest};
pub use channel::{
    Asker, BODY_BYTES_MAX, Bounds, Channel, Ended, FILES_MAX, HEADER_BYTES, Header, Kind, Packet, Patience,
    ReceivedReply, Refusal, Reply, Request, Ticket,
};
pub use component::{Context, Main, run_if_component};
pub use error::{ComponentError, Result};
pub use listing::{ComponentListing, Listing, listings, runtime_directory, trusted_lines};
pub use merged::Merged;
pub use plan::{ChannelPlan, ComponentPlan, End, Plan, RegionGrant, Restart};
pub use ports::{ComponentMessage, Ports, Role, SupervisorMessage};
pub use region::{Access, Mapped, PAGE_BYTES, Region, Regions, View};
pub use sandbox::{
    Permission, Profile, Wall, all_walls_are_required, call_name, permitted_calls, require_all_walls, weaker,
};
pub use selfcheck::{Checked, ExpectedOutcome, Verdict, attempt_names, selfcheck};
pub use spawn::{ARGUMENT, Program, USER_BASE};
pub use supervisor::{Event, ProcessName, Supervisor};
