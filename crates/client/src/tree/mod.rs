//! The file tree of a view, and plans to change it. This module is pure: it reads from a source of blocks and
//! uses no clock, thread or network.
//!
//! - [`Base`]: a verified view, and how files are found in it;
//! - [`Touches`]: pending operations, and so conflicts;
//! - [`View`]: the file system at one position in the order;
//! - [`Edit`]: a change to be planned, on [`Changes`], which are a [`Transaction`] in the engine;
//! - [`survey()`]: goes through everything, to find what nothing refers to;
//! - [`Plan`]: deltas for the certificate, tables for the structure.
//!
//! Attack answered: laundering (SUNDR 3.4.2). Pending changes of another device are included only as changes
//! tagged with their operation, which count if and only if it is committed. So no signature ever vouches for
//! another device's unfinished operation.

mod allocate;
mod base;
mod edit;
mod layer;
mod membership;
mod plan;
mod survey;
mod touches;
mod transaction;
mod view;

pub use allocate::{Allocator, Range};
pub use base::{Base, Entries, InodeLocation, ReadError, TableCache, directory_of, laid_over};
pub use edit::{Changes, Edit, MakeContent, OrderedResult};
pub use layer::{Explain, PlanSink};
pub use membership::MembershipChanges;
pub use plan::Plan;
pub use survey::{Survey, UnreferencedFile, each_file, survey};
pub use touches::{Touches, tag_of};
pub use transaction::Transaction;
pub use view::{Names, View};
pub(crate) use view::{name_of, principals_of};
