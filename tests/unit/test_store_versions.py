"""Maps: a tree of versions against dicts, with branches from old versions, abandoned drafts and drafts that nobody ended."""

import gc

import pytest
from hypothesis import given
from store_tree import DEFAULTS, GROUPS, SPARSE, check, drafts, grow, seed

from kvproof.core.config import Config
from kvproof.store.draft import Draft
from kvproof.store.state import initial


def edit(d, model, op):
    kind, g, value, which = op
    g, name = g % GROUPS, list(DEFAULTS)[which % 4]
    content, edited, default = model.maps[name], getattr(d, name), DEFAULTS[name]
    if kind % 3 == 0:
        edited.discard(g)
        content.pop(g, None)
    elif kind % 3 == 1:
        edited[g] = content[g] = value
        if name in SPARSE and value == default:
            del content[g]
    elif default is not None or g in content:
        assert edited[g] == content.get(g, default)
    else:
        with pytest.raises(KeyError):
            edited[g]


@given(drafts)
def test_maps_on_a_tree_of_versions(plan):
    grow(plan, edit)


def test_two_drafts_open_at_once_do_not_see_each_other():
    state, model = seed()
    one, two = Draft(state), Draft(state)
    one.born[1] = 5
    two.born[1] = 6
    one.born[2] = 7
    left, right = one.close(), two.close()
    assert (left.born.to_dict(), right.born.to_dict()) == ({1: 5, 2: 7}, {1: 6})
    check(state, model)


def test_an_abandoned_draft_costs_no_copy_and_a_branch_does():
    state, _ = seed()
    maps = state.maps.maps
    d = Draft(state)
    d.born[1] = 5
    d.abandon()
    assert state.maps.maps is maps
    newer = Draft(state)
    newer.born[1] = 5
    newest = newer.close()
    assert newest.maps.maps is maps
    branch = Draft(state)
    branch.born[1] = 6
    assert branch.close().maps.maps is not maps
    assert newest.maps.maps is maps


def test_a_branch_given_up_leaves_its_copy_to_the_state_it_came_from():
    state, model = seed()
    newer = Draft(state)
    newer.born[1] = 5
    newest = newer.close()
    branch = Draft(state)
    branch.born[1] = 6
    branch.abandon()
    check(state, model)
    copy = state.maps.maps
    assert copy is not None and copy is not newest.maps.maps and newest.born[1] == 5
    assert Draft(state).close().maps.maps is copy


@pytest.mark.parametrize("end", [Draft.close, Draft.abandon])
def test_a_draft_without_edits_ends_once(end):
    state, _ = seed()
    d = Draft(state)
    end(d)
    for again in (d.close, d.abandon):
        with pytest.raises(AssertionError, match="closed"):
            again()


def test_a_draft_that_writes_to_no_map_makes_no_version():
    state, _ = seed()
    d = Draft(state)
    d.clock += 1
    newer = d.close()
    assert newer.maps is state.maps and newer.clock == state.clock + 1
    again = Draft(newer)
    again.born[1] = 5
    assert again.close().born[1] == 5 and 1 not in state.born


def test_a_missing_key_raises_but_an_unknown_group_is_absent():
    state, _ = seed()
    assert state.status[99] == 0
    with pytest.raises(KeyError):
        state.born[99]


def test_states_and_views_are_read_only():
    state, _ = seed()
    with pytest.raises(AttributeError):
        state.clock = 3
    with pytest.raises(AttributeError):
        state.born = {}
    with pytest.raises(TypeError):
        state.born[1] = 2


def test_a_long_history_is_readable_at_both_ends_and_can_be_dropped():
    state = initial(Config(num_gpu_blocks=1, num_cpu_blocks=0))
    kept = [state]
    for i in range(30_000):
        d = Draft(state)
        d.born[i % 3] = i
        state = d.close()
        kept.append(state)
    assert kept[0].born.to_dict() == {} and kept[2].born.to_dict() == {0: 0, 1: 1}
    assert state.born[2] == 29_999
    del kept[1:], state, d
    gc.collect()
    assert kept[0].born.to_dict() == {}
    kept.clear()
    gc.collect()  # a chain of 30,000 versions goes at once
