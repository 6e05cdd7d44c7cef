"""Several streams as one: merged into one state, passed on as they come, or paired up by session."""

from tidestate.operators.merging.accumulation import merge_accumulate as merge_accumulate
from tidestate.operators.merging.description import Merged as Merged
from tidestate.operators.merging.description import SessionJoined as SessionJoined
from tidestate.operators.merging.description import Unioned as Unioned
from tidestate.operators.merging.description import merge as merge
from tidestate.operators.merging.description import session_join as session_join
from tidestate.operators.merging.description import union as union
