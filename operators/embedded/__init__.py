"""The window operator by itself, called by hand or in a loop: messages in, panes out, each message once."""

from tidestate.operators.embedded.embedded import Result as Result
from tidestate.operators.embedded.join_operator import JoinOperator as JoinOperator
from tidestate.operators.embedded.loop import run_operator as run_operator
from tidestate.operators.embedded.window_operator import WindowOperator as WindowOperator
