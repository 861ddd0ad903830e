//! Groups within groups: a user who belongs to the inner one belongs to the outer one too.
//!
//! Invariants ([`Membership::validate`]): no group is within itself; there are at most [`GROUP_DEPTH_MAX`]
//! levels; nothing removed is a member or has groups as members; and the total size is bounded. Former
//! members are all who no longer belong, whichever group on the path they or it left. So one entry decides
//! whether a table signed earlier is valid.
//!
//! Attack answered: a membership, signed by a hostile superuser, that makes checking it take for ever.

use super::Membership;
use crate::error::Malformed;
use crate::{GroupId, UserId};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Most levels of groups, the outermost included.
pub const GROUP_DEPTH_MAX: usize = 8;
/// Most members and groups, each counted wherever it is met, of all groups that have groups as members.
const NESTED_WORK_MAX: usize = 1 << 20;
/// First character of the name of a member that is a group.
const GROUP_SIGN: char = '@';

/// A member of a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Member {
    /// A user.
    User(UserId),
    /// All members of a group.
    Group(GroupId),
}

impl Membership {
    /// Whether `user` belongs to `group`, or to a group within it.
    pub fn is_member(&self, group: GroupId, user: UserId) -> bool {
        let Some(outer) = self.groups.get(&group) else { return false };
        let has = |group: &GroupId| self.groups.get(group).is_some_and(|group| group.members.contains(&user));
        outer.members.contains(&user) || !outer.groups.is_empty() && self.groups_within(group).iter().any(has)
    }

    /// `group` and all groups within it.
    pub fn groups_within(&self, group: GroupId) -> BTreeSet<GroupId> {
        let mut unbounded = usize::MAX;
        self.walk(group, &mut unbounded).unwrap_or_default()
    }

    /// The users who belong to `group` or to a group within it.
    pub fn effective_members(&self, group: GroupId) -> Cow<'_, BTreeSet<UserId>> {
        match self.groups.get(&group) {
            None => Cow::Owned(BTreeSet::new()),
            Some(outer) if outer.groups.is_empty() => Cow::Borrowed(&outer.members),
            Some(_) => {
                let within = self.groups_within(group);
                let groups = within.iter().filter_map(|group| self.groups.get(group));
                Cow::Owned(groups.flat_map(|group| group.members.iter().copied()).collect())
            }
        }
    }

    /// The users who belong to `group` here and not in `next`.
    pub fn leaving_members(&self, group: GroupId, next: &Membership) -> BTreeSet<UserId> {
        let now = next.effective_members(group);
        self.effective_members(group).difference(&now).copied().collect()
    }

    /// A member by name: a user's name, or a group's name after an `@`.
    pub fn member_by_name(&self, name: &str) -> Option<Member> {
        let group = || self.group_by_name(name.strip_prefix(GROUP_SIGN)?).map(Member::Group);
        self.user_by_name(name).map(Member::User).or_else(group)
    }

    /// Makes `member` belong to `group`. `false` if it does already.
    pub fn admit(&mut self, group: GroupId, member: Member) -> bool {
        let Some(group) = self.groups.get_mut(&group) else { return false };
        match member {
            Member::User(user) => group.members.insert(user),
            Member::Group(inner) => group.groups.insert(inner),
        }
    }

    /// Undoes [`Membership::admit`]. `false` if `member` is not directly in `group`.
    pub fn expel(&mut self, group: GroupId, member: Member) -> bool {
        let Some(group) = self.groups.get_mut(&group) else { return false };
        match member {
            Member::User(user) => group.members.remove(&user),
            Member::Group(inner) => group.groups.remove(&inner),
        }
    }

    /// Removes a group. Its members, also those who belong to it through other groups, stay on record as its
    /// users, and it is a member of no group any more.
    pub fn remove_group(&mut self, group: GroupId) {
        let members = self.effective_members(group).into_owned();
        if let Some(group) = self.groups.get_mut(&group) {
            group.members = members;
            group.groups.clear();
            group.removed = true;
        }
        for outer in self.groups.values_mut() {
            outer.groups.remove(&group);
        }
    }

    /// The rules for groups within groups.
    pub(super) fn validate_nesting(&self) -> Result<(), Malformed> {
        let rule = |broken: bool, text: &str| if broken { Err(Malformed::Rule(text.into())) } else { Ok(()) };
        let mut open: BTreeMap<GroupId, &BTreeSet<GroupId>> = BTreeMap::new();
        for (id, group) in self.groups.iter().filter(|(_, group)| !group.groups.is_empty()) {
            rule(group.removed, "a removed group has groups as members")?;
            let gone =
                group.groups.iter().any(|inner| self.groups.get(inner).is_none_or(|group| group.removed));
            rule(gone, "a group that is a member of another is removed or not there")?;
            open.insert(*id, &group.groups);
        }
        // The innermost level first. A group that is left over after so many rounds is nested too deeply, or
        // within itself.
        for _ in 1..GROUP_DEPTH_MAX {
            let settled: Vec<GroupId> = open
                .iter()
                .filter(|(_, inner)| !inner.iter().any(|group| open.contains_key(group)))
                .map(|(id, _)| *id)
                .collect();
            open.retain(|id, _| !settled.contains(id));
        }
        rule(!open.is_empty(), "groups are within each other in a circle, or too deep")?;
        let mut work = NESTED_WORK_MAX;
        for (id, _) in self.groups.iter().filter(|(_, group)| !group.groups.is_empty()) {
            rule(self.walk(*id, &mut work).is_none(), "groups within groups come to too many members")?;
        }
        Ok(())
    }

    /// As [`Membership::groups_within`]; `None` if that needs more than `work` steps, from which it subtracts
    /// its own.
    fn walk(&self, group: GroupId, work: &mut usize) -> Option<BTreeSet<GroupId>> {
        let mut within = BTreeSet::from([group]);
        let mut next = vec![group];
        while let Some(id) = next.pop() {
            let Some(group) = self.groups.get(&id) else { continue };
            *work = work.checked_sub(group.members.len() + group.groups.len())?;
            next.extend(group.groups.iter().copied().filter(|inner| within.insert(*inner)));
        }
        Some(within)
    }
}
