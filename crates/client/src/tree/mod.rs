//! The file tree of a view, and plans to change it. Pure: given a source of blocks, it decides; it knows no
//! clock, no thread and no network.
//!
//! - [`Base`]: a verified view and how files are found in it;
//! - [`Touches`]: what is pending, and so what conflicts;
//! - [`View`]: the file system at one place in the order;
//! - [`Edit`]: what is planned, on [`Changes`], which are a [`Transaction`] in the engine;
//! - [`survey()`]: everything there is, to find what nothing refers to;
//! - [`Plan`]: deltas for the certificate, i-handles for the structure.
//!
//! Attack answered: laundering (SUNDR 3.4.2). What another device has pending is folded in only as changes
//! tagged with that operation, which count if and only if it is committed; so nobody's signature ever vouches
//! for somebody else's unfinished operation.

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
