"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const font = getComputedStyle(document.body).fontFamily;
  const text = {
    labelFont: font, titleFont: font, labelFontSize: 12, titleFontSize: 12, labelColor: "var(--muted)",
    titleColor: "var(--muted)", titleFontWeight: "normal",
  };
  const config = {
    background: null,
    font: font,
    padding: { left: 0, right: 4, top: 4, bottom: 0 },
    view: { stroke: null },
    axis: {
      ...text, gridColor: "var(--grid)", domainColor: "var(--line)", tickColor: "var(--line)", labelPadding: 5,
    },
    axisY: { domain: false, ticks: false, tickCount: 4 },
    axisX: { labelOverlap: true, titlePadding: 6, labelFlush: true },
    legend: { ...text, symbolSize: 90, rowPadding: 2, offset: 8 },
  };
  const options = {
    renderer: "svg", actions: false, ast: true,
    loader: { load: () => Promise.reject(new Error("this page loads nothing")) },
    tooltip: { disableDefaultStyle: true },
  };
  for (const box of document.querySelectorAll("[data-chart]")) {
    vegaEmbed(box, { ...charts[box.dataset.chart], config }, options).then(
      () => { box.dataset.drawn = "yes"; },
      (error) => { box.textContent = "This chart cannot be drawn."; box.dataset.drawn = "no"; console.error(error); },
    );
  }
})();
