//! Groups within groups: a user who belongs to the inner one belongs to the outer one too.
//!
//! Invariants ([`Membership::validate`]): no group is within itself, at most [`GROUP_DEPTH_MAX`] levels, nothing that
//! was removed is a member or has groups as members, and what all of it comes to is bounded. Former members are all who
//! ceased to belong, whichever group on the way they or it left; so a table signed before is judged by one entry.
//!
//! Attack answered: a membership that is signed by a hostile superuser and costs whoever judges by it without end.

use super::Membership;
use crate::error::Malformed;
use crate::{GroupId, UserId};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Most levels of groups, the outermost included.
pub const GROUP_DEPTH_MAX: usize = 8;
/// Most members and groups, each counted wherever it is met, of all groups that have groups as members.
const NESTED_WORK_MAX: usize = 1 << 20;
/// What a name of a member begins with if it is a group's.
const GROUP_SIGN: char = '@';

/// Who can be a member of a group.
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

    /// What a member is called: a user by name, a group by its name after an `@`.
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

    /// Ends what [`Membership::admit`] began. `false` if `member` is none of `group`'s own.
    pub fn expel(&mut self, group: GroupId, member: Member) -> bool {
        let Some(group) = self.groups.get_mut(&group) else { return false };
        match member {
            Member::User(user) => group.members.remove(&user),
            Member::Group(inner) => group.groups.remove(&inner),
        }
    }

    /// Removes a group. Its members stay on record as users of its own, whatever becomes of the groups they came by; and
    /// it is a member of no group any more.
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
        // The innermost level first; a group that is left over after so many rounds is too deep, or within itself.
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

    /// As [`Membership::groups_within`]; `None` if that takes more than `work` steps, which it takes from there.
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
