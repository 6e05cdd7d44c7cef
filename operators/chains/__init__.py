"""Several operators in one job: one takes what another shows, and one checkpoint holds the state of all."""

from tidestate.operators.chains.description import Chain as Chain
from tidestate.operators.chains.description import chain as chain
